"""What is done inside one sandbox: programs, files, git and the rest."""
