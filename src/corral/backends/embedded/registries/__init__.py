"""Which package registries this machine is configured for: asked of its own tools, never a list of ours."""

from corral.backends.embedded.registries.finding import find_registries, find_registries_of
from corral.backends.embedded.registries.registry import Registries, Source

__all__ = ["Registries", "Source", "find_registries", "find_registries_of"]
