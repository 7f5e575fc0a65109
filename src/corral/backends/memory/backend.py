"""`MemoryBackend`: creates, finds and deletes sandboxes in memory, with the replies that a test scripts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence

from corral.backends.memory.call import Program
from corral.backends.memory.program import BUILT_IN, shell
from corral.backends.memory.sandbox import CODE_PROGRAM, Box, MemorySandbox
from corral.backends.memory.script import PastCall, Reply, Script, Wanted
from corral.base.files import encode
from corral.client.sandbox import AsyncSandbox
from corral.concurrency.tokens import TokenBook
from corral.errors import SandboxGoneError, SpecError
from corral.protocol import Backend, OnEvent, refuse_given
from corral.results import Capabilities, Denial, SandboxInfo
from corral.spec import Spec

NAME = "memory"
POWERS = frozenset({"denials", "detach", "ephemeral", "secrets", "set_network", "watch"})
_SHELLS = ("bash", "sh")


class MemoryBackend(Backend):
    """Sandboxes in the memory of this process, for tests. Usable from any thread and event loop.

    `programs` are async functions by name; they take precedence over the built-in ones. `on_code` runs every snippet of
    `run_code` that has no scripted reply; without it, only bash and sh snippets run, in a small built-in shell.
    """

    name = NAME

    def __init__(self, *, programs: Mapping[str, Program] | None = None, on_code: Program | None = None) -> None:
        self.script = Script()
        self.calls: list[PastCall] = []
        """All programs and snippets that were run, in order."""
        self.programs: Mapping[str, Program] = {**BUILT_IN, CODE_PROGRAM: on_code or shell, **(programs or {})}
        self._on_code = on_code
        self._boxes: dict[str, Box] = {}
        self._tokens: TokenBook[MemorySandbox] = TokenBook()
        self._lock = threading.RLock()

    # What a test scripts.

    def reply(
        self,
        command: Wanted,
        *,
        stdout: str | bytes = "",
        stderr: str | bytes = "",
        exit_code: int = 0,
        seconds: float = 0.0,
        times: int | None = None,
        denied: Sequence[Denial] = (),
    ) -> None:
        """Script the reply to a command, given as its whole text or a pattern. It can be used `times` times. `denied`
        is what it tries to reach, and is refused."""
        self.script.add(
            Reply(command, False, None, encode(stdout), encode(stderr), exit_code, seconds, times, tuple(denied))
        )

    def reply_code(
        self,
        code: Wanted,
        *,
        language: str | None = None,
        stdout: str | bytes = "",
        stderr: str | bytes = "",
        exit_code: int = 0,
        seconds: float = 0.0,
        times: int | None = None,
        denied: Sequence[Denial] = (),
    ) -> None:
        """Script the reply to a snippet, of one language or of any."""
        self.script.add(
            Reply(code, True, language, encode(stdout), encode(stderr), exit_code, seconds, times, tuple(denied))
        )

    def count_living(self) -> int:
        """The number of existing sandboxes, owned and detached."""
        return len(self._boxes)

    # The contract.

    async def create(self, spec: Spec, *, on_event: OnEvent | None = None) -> AsyncSandbox:
        _refuse_what_is_missing(spec)
        sandbox = await self._tokens.make_once(spec.client_token, lambda: self._make(spec))
        return AsyncSandbox.around(sandbox, on_event=on_event, event="created")

    async def _make(self, spec: Spec) -> MemorySandbox:
        await asyncio.sleep(0)  # it can be cancelled here, as in every real backend
        box = Box(spec, self)
        with self._lock:
            self._boxes[box.sandbox_id] = box
        return MemorySandbox(box)

    async def connect(self, sandbox_id: str) -> AsyncSandbox:
        return AsyncSandbox.around(MemorySandbox(self._find(sandbox_id)))

    async def list(self) -> Sequence[SandboxInfo]:
        with self._lock:
            return [box.describe() for box in self._boxes.values() if box.detached]

    async def delete(self, sandbox_id: str) -> None:
        self._find(sandbox_id).end()

    async def capabilities(self) -> Capabilities:
        return Capabilities(
            isolation="nothing is executed",
            memory="none",
            processes="none",
            cpu="none",
            disk="hard",
            network=("none", "packages", "allow", "open"),
            powers=POWERS,
            notes=(
                "a fake for tests: a tree of files in memory and scripted programs",
                "network= is kept, and nothing is reached: denials are scripted",
            ),
        )

    async def aclose(self) -> None:
        with self._lock:
            owned = [box for box in self._boxes.values() if not box.detached]
        for box in owned:
            box.end()

    # What a sandbox asks.

    def runs(self, language: str, source: bytes) -> bool:
        """True if a snippet has a scripted reply, or something that runs it."""
        if self._on_code is not None or language in _SHELLS:
            return True
        return self.script.knows_code(source.decode("utf-8", "surrogateescape"), language)

    def ended(self, box: Box) -> None:
        with self._lock:
            self._boxes.pop(box.sandbox_id, None)

    def name_it(self, box: Box, name: str | None) -> None:
        if name is None:
            return
        Spec(name=name)  # raises for an invalid name
        with self._lock:
            if any(other.name == name for other in self._boxes.values() if other is not box):
                raise SpecError(f"a sandbox named {name!r} already exists", hint="use another name, or remove that one")
            box.name = name

    def _find(self, wanted: str) -> Box:
        with self._lock:
            for box in self._boxes.values():
                if box.detached and wanted in (box.sandbox_id, box.name):
                    return box
        raise SandboxGoneError(
            f"sandbox {wanted!r} not found", op="connect", hint="backend.list() lists the existing ones"
        )


def _refuse_what_is_missing(spec: Spec) -> None:
    hint = "it executes nothing: script a reply"
    unsupported = {
        "images": (spec.image is not None, hint),
        "packages": (bool(spec.packages), hint),
        "venv": (spec.venv is not None, hint),
        "snapshot": (spec.snapshot is not None, hint),
        "mounts": (bool(spec.mounts), hint),
    }
    refuse_given("memory", unsupported)
