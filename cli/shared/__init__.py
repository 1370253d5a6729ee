"""What all commands share: the parser, errors in one line, progress, rows, examples."""
