"""The interpreter's driver: runs inside, and is sent as text."""
