"""The common parts of all backends: running programs, files, output, transfer."""
