"""Code that all commands share: parser, one-line errors, progress, output files."""
