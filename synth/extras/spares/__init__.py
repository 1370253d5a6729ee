"""Plans for the loss of a link or a NIC, made before it is lost and saved in the plan's file."""
