"""Links that become slow: a warning that names them, and plans that follow their rates."""
