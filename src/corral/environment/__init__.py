"""Environments: givers with a memory. They resolve variables, keep sandboxes by resolved spec, and end them."""

from __future__ import annotations

from corral.environment.environment import Environment
from corral.environment.variable import Variable

__all__ = ["Environment", "Variable"]
