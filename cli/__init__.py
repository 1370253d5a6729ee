"""The commands. They parse arguments, call the library and print; they decide nothing."""
