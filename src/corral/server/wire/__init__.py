"""The wire's models, as msgspec reads and writes them."""
