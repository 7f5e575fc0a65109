"""The memory backend: the fake we ship, for unit tests of code that uses sandboxes.

Nothing is executed. A tree of files in memory, a few built-in programs, and whatever a test scripts:

    backend = MemoryBackend()
    backend.reply("git status", stdout="clean\\n")
    backend.reply_code(re.compile("6 \\\\* 7"), stdout="42\\n")
    with Sandbox(backend=backend) as box:
        assert box.exec("git status").stdout == "clean\\n"
    assert [call.text for call in backend.calls] == ["git status"]

It passes what a fake can pass of `corral.testing`, and answers `CapabilityError` to the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from corral.backends.memory.backend import MemoryBackend
from corral.backends.memory.call import Call, Program
from corral.backends.memory.script import PastCall

__all__ = ["Call", "MemoryBackend", "PastCall", "Program", "open_backend"]


def open_backend() -> MemoryBackend:
    """For the registry: one with nothing but the built-in programs."""
    return MemoryBackend()


def __dir__() -> Sequence[str]:
    return __all__
