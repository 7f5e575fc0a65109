"""The server's state: SQLite in its data folder. Calls are short (tens of microseconds), so they are made where
they are needed, in the event loop's own thread."""
