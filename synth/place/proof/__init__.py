"""Lower bounds on all rank orders: certificates, what they prove, and how they are found."""
