"""Corral behind the interfaces of agent frameworks, a room for each. Nothing is imported before it is used."""
