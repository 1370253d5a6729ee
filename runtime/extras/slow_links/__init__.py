"""Notice links that become slow: warn of them by name, and adapt plans to their rates."""
