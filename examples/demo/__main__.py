"""`make demo`, or `python examples/demo`: what Corral does, shown in seconds.

Errors look as they do everywhere in the command line.
"""

from __future__ import annotations

import asyncio
import sys

from corral.cli import failure
from play import play


def main() -> int:
    """Gives the exit code: 0 when everything went as it should."""
    try:
        return asyncio.run(play())
    except BrokenPipeError:
        return failure.leave_quietly()
    except BaseException as error:  # noqa: BLE001 - the last line of defence against a traceback
        return failure.report(error)


if __name__ == "__main__":
    sys.exit(main())
