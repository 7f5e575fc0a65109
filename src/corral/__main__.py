"""`python -m corral` is `corral`."""

from __future__ import annotations

import sys

from corral.cli import main_as_module

sys.exit(main_as_module())
