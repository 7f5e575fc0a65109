"""The former name of `corral.forge.dreamfoundry`, for programs that import it."""

from corral.forge.dreamfoundry import *  # noqa: F403 - the same names
from corral.forge.dreamfoundry import __all__  # noqa: F401 - says which
