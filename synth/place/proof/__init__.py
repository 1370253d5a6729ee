"""What no order of ranks can beat: certificates, what they prove, and how they are found."""
