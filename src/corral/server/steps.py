"""Named steps of every change of a sandbox. Tests kill the server at each of them, as a power cut would."""

from __future__ import annotations

import os
import signal

_CRASH_AT = os.environ.get("CORRAL_TEST_CRASH_AT")


def reached(step: str) -> None:
    """Does nothing, unless a test wants the process to be killed here."""
    if step == _CRASH_AT:
        os.kill(os.getpid(), signal.SIGKILL)
