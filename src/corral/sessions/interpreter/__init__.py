"""The stateful interpreter: code runs in a process that lives on, with its variables, from one run to the next."""
