"""What plans anew while a job runs: in a thread, and which segmentations to try then."""
