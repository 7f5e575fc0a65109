"""Tar streams: one reader and one writer for all backends, both sides of a sandbox's wall, threads and event loops.

It stands below everything, the engine's file agent included, and so imports nothing of ours. The agent uses it inside a
sandbox, where nothing may be loaded from files any more: no user names are looked up, nothing is imported late.
"""
