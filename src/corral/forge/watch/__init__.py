"""The live page: a contest as it happens, on loopback."""

from __future__ import annotations

from corral.forge.watch.server import WatchServer

__all__ = ["WatchServer"]
