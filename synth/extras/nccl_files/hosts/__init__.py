"""Graph files for jobs on several equal hosts, in which each channel begins and ends at a NIC."""
