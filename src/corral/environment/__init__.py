"""Environments resolve variables, cache sandboxes by resolved spec, and delete them."""

from __future__ import annotations

from corral.environment.environment import Environment
from corral.environment.variable import Variable

__all__ = ["Environment", "Variable"]
