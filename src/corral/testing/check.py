"""What a check is, what it gets, and how it is run.

A check is one promise of `corral.protocol`, tried on a backend. It raises AssertionError when the promise is broken.
Time is never measured: the only clocks are guards against hanging.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import tarfile
import tempfile
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from corral.client.sandbox import AsyncSandbox
from corral.protocol import Backend
from corral.results import Capabilities
from corral.spec import make_spec

HANG_SECONDS = 60.0
"""After so long a check is stuck. Nothing here takes a tenth of it on a slow machine."""

Need = Literal[
    "shell",  # a POSIX shell with its usual tools
    "processes",  # programs are really executed
    "python",  # there is a Python inside
    "bounded",  # streams pass through without being held in memory
    "network_none",  # there is a network to be cut off from
    "oom",  # memory is limited
    "loops",  # a program goes on when the event loop that started it ends
]
"""What a check asks of a backend beyond the contract; a fake may list it among what it can't."""
NEEDS: frozenset[str] = frozenset(get_args(Need))
POWERS = frozenset(
    ("detach", "pty", "views", "users", "watch", "ephemeral", "snapshot", "fork", "stop", "pause", "resize")
)
"""What a check may ask for and `capabilities()` may deny. That a denied one answers CapabilityError is a check, too."""

Count = Callable[[Backend], int]


class Context:
    """What a check works with."""

    def __init__(
        self,
        backend: Backend,
        *,
        scratch: Path,
        powers: frozenset[str],
        count: Count | None = None,
        make: Callable[[], Backend] | None = None,
    ) -> None:
        self.backend = backend
        self.make: Callable[[], Backend] = make or type(backend)
        """Makes a second backend, for the checks that close one."""
        self.scratch = scratch
        """A folder of the host."""
        self.powers = powers
        self._count = count
        self._opened: list[AsyncSandbox] = []

    async def open(self, **spec_options: Any) -> AsyncSandbox:
        """A sandbox, made from the keywords of `make_spec`, and ended after the check."""
        box = await self.backend.create(make_spec(**spec_options))
        self._opened.append(box)
        return box

    def adopt(self, box: Any) -> Any:
        """Delete a sandbox, which the check created itself, after the check."""
        self._opened.append(box)
        return box

    async def count(self) -> int:
        """How many sandboxes live; of a backend that can't say, how many are listed."""
        if self._count is not None:
            return await asyncio.to_thread(self._count, self.backend)
        hook = getattr(self.backend, "count_living", None)
        return int(hook()) if hook is not None else len(await self.backend.list())

    async def wait_for_count(self, wanted: int) -> None:
        """Ending may take a moment, but must come."""
        await until(self.count, wanted, "sandboxes were left behind")

    async def clean_up(self) -> None:
        """End what the check opened."""
        for box in reversed(self._opened):
            with contextlib.suppress(Exception):
                await box.kill()
            with contextlib.suppress(Exception):
                await box.aclose()
        self._opened.clear()


Body = Callable[..., Awaitable[None]]
"""A check's own function. It gets what its parameters name.

`context`, a new sandbox as `box`, its `files`, and `before`: how many sandboxes lived before that one.
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise."""

    name: str
    promise: str
    title: str
    body: Body
    needs: frozenset[str] = frozenset()
    raises: tuple[str, ...] = ()
    """The `Raises:` lines of the contract it stands behind, as `method:ErrorClass`."""
    hang_seconds: float = HANG_SECONDS

    async def run(self, context: Context) -> None:
        """Try it. Raises: AssertionError, or what the backend raises."""
        given: dict[str, Any] = {"context": context}
        names = inspect.signature(self.body).parameters
        if "before" in names:
            given["before"] = await context.count()
        if "box" in names or "files" in names:
            given["box"] = await context.open()
            given["files"] = given["box"].files
        await self.body(**{name: given[name] for name in names})

    def __str__(self) -> str:
        return f"{self.name} [{self.promise}] {self.title}"


_registry: dict[str, Check] = {}


def check(
    *, promise: str, title: str, needs: frozenset[str] = frozenset(), raises: tuple[str, ...] = ()
) -> Callable[[Body], Body]:
    """Mark a check. `promise` is a rule's number, or the method whose `Raises:` or text it stands behind."""

    def register(body: Body) -> Body:
        name = getattr(body, "__name__", "?")
        if name in _registry:
            raise ValueError(f"there are two checks named {name!r}")
        if unknown := needs - NEEDS - POWERS:
            raise ValueError(f"{name} needs {sorted(unknown)}, which nobody knows")
        _registry[name] = Check(name, promise, title, body, needs, raises)
        return body

    return register


def registered() -> tuple[Check, ...]:
    """Every check that was marked so far, in order."""
    return tuple(_registry.values())


# Running.

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check showed; `detail` is the reason of a skip, or the trace of a failure."""

    name: str
    promise: str
    title: str
    outcome: Outcome
    detail: str = ""

    def to_json(self) -> dict[str, str]:
        """For other processes."""
        return asdict(self)


async def run_check(
    item: Check,
    backend: Backend,
    *,
    cannot: Mapping[str, str],
    count: Count | None = None,
    scratch: Path | None = None,
    make: Callable[[], Backend] | None = None,
) -> Verdict:
    """Run one check in the current event loop. `cannot` gives a reason by name of a check or a need."""
    capabilities = await backend.capabilities()
    reason = find_reason(item, capabilities, cannot)
    if reason is not None:
        return Verdict(item.name, item.promise, item.title, "skipped", reason)
    with _folder(scratch) as folder:
        context = Context(backend, scratch=folder, powers=capabilities.powers, count=count, make=make)
        detail = ""
        try:
            async with asyncio.timeout(item.hang_seconds):
                await item.run(context)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises, it is a verdict here
            detail = "".join(traceback.format_exception(error))
        finally:
            await context.clean_up()
    return Verdict(item.name, item.promise, item.title, "failed" if detail else "passed", detail)


def find_reason(item: Check, capabilities: Capabilities, cannot: Mapping[str, str]) -> str | None:
    """Why a check is not run here, if it is not."""
    for name in (item.name, *sorted(item.needs)):
        if name in cannot:
            return cannot[name]
    missing = sorted((item.needs & POWERS) - capabilities.powers)
    return f"capabilities() has no {', '.join(missing)}" if missing else None


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="corral-check-") as name:
        yield Path(name)


# What checks say.


async def raises(kind: type[BaseException] | tuple[type[BaseException], ...], work: Awaitable[object]) -> Any:
    """The error that `work` must raise."""
    try:
        result = await work
    except kind as error:
        return error
    names = kind.__name__ if isinstance(kind, type) else " or ".join(one.__name__ for one in kind)
    raise AssertionError(f"should have raised {names}, but gave {_short(result)}")


def equal(actual: object, wanted: object, what: str = "") -> None:
    """Equality, shown."""
    if actual != wanted:
        raise AssertionError(f"{what or 'got'}: {_short(actual)}, and should be {_short(wanted)}")


def true(condition: object, what: str) -> None:
    """`assert` that python -O keeps."""
    if not condition:
        raise AssertionError(what)


async def until(ask: Callable[[], Awaitable[Any] | Any], wanted: object, what: str) -> None:
    """Ask again until the answer is right; the check's own guard ends it otherwise."""
    seen: Any = None
    try:
        async with asyncio.timeout(HANG_SECONDS / 3):
            while True:
                answer = ask()
                seen = await answer if inspect.isawaitable(answer) else answer
                if seen == wanted:
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{what}: {_short(seen)}, and should be {_short(wanted)}") from None


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    """A stream."""
    for part in parts:
        await asyncio.sleep(0)
        yield part


async def repeat(part: bytes, times: int) -> AsyncIterator[bytes]:
    """A long stream that is never in memory as a whole."""
    for _ in range(times):
        yield part


def make_tar(*members: tuple[str, bytes | str]) -> bytes:
    """Give a tar of files (bytes) and links (text)."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return sink.getvalue()


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 600 else f"{text[:300]} … {text[-300:]}"
