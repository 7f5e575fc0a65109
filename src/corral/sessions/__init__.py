"""Recorded programs, and shell sessions, terminals and interpreters, which are built on them."""
