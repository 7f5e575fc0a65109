"""What every backend's handles are made of: running programs, files, output, transfer. Written once."""
