"""Named steps of whatever changes a sandbox. Tests end the server at each of them, as a power cut would."""

from __future__ import annotations

import os
import signal

_CRASH_AT = os.environ.get("CORRAL_TEST_CRASH_AT")


def reached(step: str) -> None:
    """Nothing, unless a test has asked for the end of the process here."""
    if step == _CRASH_AT:
        os.kill(os.getpid(), signal.SIGKILL)
