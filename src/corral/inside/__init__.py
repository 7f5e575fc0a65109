"""What is sent into a sandbox or runs in it. Standard library only; imports nothing else of Corral."""
