"""Graph files for jobs of several equal hosts, in which each channel begins and ends at a NIC."""
