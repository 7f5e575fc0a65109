"""The stateful interpreter: code runs in one process, which keeps its variables between runs."""
