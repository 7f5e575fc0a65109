"""`make demo`, or `python -m corral.cli.demo`: what Corral does, shown in seconds."""
