"""The command line. One file for each noun; `main` is the only place where an error becomes a line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# No other module is imported here: see `main_as_module`.

PROGRAM = "corral"


def main_as_module() -> int:
    """`main`, for `python -m`, which puts the working folder first on the module search path.

    That folder may contain files of a sandbox, such as a `json.py`, so it is removed from the path. Modules that
    Python itself and `import corral` have already loaded can't be helped, and a folder that PYTHONPATH names stays.
    """
    try:
        here = os.getcwd()  # noqa: PTH109 - pathlib would be looked for in that very folder
    except OSError:  # it was removed, so Python has not added it
        return main()
    if not sys.flags.safe_path and sys.path[:1] == [here]:
        del sys.path[0]
    return main()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code. Raises only with CORRAL_DEBUG."""
    _open_closed_streams()
    from corral.cli import failure  # here, so that `import corral.cli` stays cheap
    from corral.cli.root import root

    _set_up_log()
    try:
        code = root.main(
            args=list(arguments) if arguments is not None else None, prog_name=PROGRAM, standalone_mode=False
        )
        sys.stdout.flush()
    except BrokenPipeError:
        return failure.leave_quietly()
    except SystemExit as leaving:  # click's shell completion ends this way
        return leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
    except BaseException as error:  # noqa: BLE001 - the last line of defence against a traceback
        return failure.report(error)
    return code if isinstance(code, int) else 0


def _open_closed_streams() -> None:
    """Open /dev/null for missing standard streams.

    Otherwise the next file or socket that is opened would get the number of a missing stream, and a program's output
    would be written there.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    # Python has no object for a stream that was closed. They stay open, as the usual ones do.
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


def _set_up_log() -> None:
    import logging

    debug = bool(os.environ.get("CORRAL_DEBUG"))
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.WARNING,
        format="%(asctime)s %(name)s %(message)s" if debug else "corral: %(message)s",
    )
    logging.getLogger("asyncio").setLevel(logging.INFO if debug else logging.CRITICAL)
