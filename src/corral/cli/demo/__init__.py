"""`make demo`, or `python -P -m corral.cli.demo`: what Corral does, shown in seconds."""
