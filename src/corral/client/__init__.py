"""What users hold: the sandbox, async and sync, and how one is opened."""
