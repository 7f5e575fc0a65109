"""The memory backend: the fake we ship, for unit tests of code that uses sandboxes.

Nothing is executed. It has a tree of files in memory, a few built-in programs, and the replies that a test scripts:

    backend = MemoryBackend()
    backend.reply("git status", stdout="clean\\n")
    backend.reply_code(re.compile("6 \\\\* 7"), stdout="42\\n")
    with Sandbox(backend=backend) as box:
        assert box.exec("git status").stdout == "clean\\n"
    assert [call.text for call in backend.calls] == ["git status"]

It passes all checks of `corral.testing` that a fake can pass; unsupported operations raise `CapabilityError`.
"""

from __future__ import annotations

from collections.abc import Sequence

from corral.backends.memory.backend import MemoryBackend
from corral.backends.memory.call import Call, Program
from corral.backends.memory.script import PastCall

__all__ = ["Call", "MemoryBackend", "PastCall", "Program", "open_backend"]


def open_backend() -> MemoryBackend:
    """For the registry: a backend with the built-in programs only."""
    return MemoryBackend()


def __dir__() -> Sequence[str]:
    return __all__
