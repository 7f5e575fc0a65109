"""From a click command into the event loop and back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from corral.cli.failure import ERROR, Failed
from corral.errors import CorralError

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T], *, error_code: int = ERROR) -> T:
    """Run to the end. Ctrl-C cancels the work, which then clears up; a failure leaves with this command's code."""
    try:
        return asyncio.run(work)
    except BrokenPipeError:
        raise
    except (CorralError, OSError) as error:
        raise Failed(error, exit_code=error_code) from error
