"""The window of a sandbox: which names and addresses it may reach, and the gate that decides. Standard library only."""
