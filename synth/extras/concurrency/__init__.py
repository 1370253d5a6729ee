"""Plans that keep to so many transfers at a time through each GPU, switch or root."""
