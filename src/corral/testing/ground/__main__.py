"""`python -m corral.testing.ground PROGRAM [ARGUMENT…]`: run a program on the test ground."""

from __future__ import annotations

import sys

from corral.testing.ground.enter import GroundError, enter

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m corral.testing.ground PROGRAM [ARGUMENT…]")
    try:
        enter(sys.argv[1:])
    except GroundError as error:
        sys.exit(f"no test ground: {error}")
