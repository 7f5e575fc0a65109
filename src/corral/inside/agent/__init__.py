"""The agent: one resident program inside that starts others, passes on what they print, and ends their trees."""
