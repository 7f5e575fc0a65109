"""Recorded programs, and what stands on them: shell sessions, terminals, interpreters."""
