"""Threads, event loops and forks: one way of doing each."""
