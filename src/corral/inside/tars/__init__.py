"""Tar streams: one reader and one writer for all backends, both sides of a sandbox's wall, threads and event loops.

The engine's file agent uses it inside a sandbox, where nothing may be loaded from files any more: no user names are
looked up, nothing is imported late.
"""
