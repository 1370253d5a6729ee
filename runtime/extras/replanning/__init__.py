"""Plan anew while a job runs: in a thread, and with a segmentation chosen without many trials."""
