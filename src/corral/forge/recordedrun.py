"""The former home of `corral.forge.dreamfoundry.Limits`, for programs that import it."""

from corral.forge.dreamfoundry import Limits

__all__ = ["Limits"]
