"""The types of the conformance suite: a check, its context and its verdict; how checks are run, and their assertions.

A check tests one promise of `corral.protocol` on a backend. It raises AssertionError when the promise is broken.
Time is never measured: the only clocks are guards against hanging.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import secrets
import tarfile
import tempfile
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from corral.base.files import AsyncFiles
from corral.client.sandbox import AsyncSandbox
from corral.protocol import Backend
from corral.results import Capabilities
from corral.spec import make_spec

HANG_SECONDS = 60.0
"""A check that takes longer counts as stuck. On a slow machine each takes less than a tenth of it."""
TIME_TO_PRINT = 2.0
"""A timeout after which a program has certainly printed its first line, also on a busy machine."""
OWN_LIMIT_BYTES = 50 << 20

Need = Literal[
    "shell",  # a POSIX shell with its usual tools
    "processes",  # programs are really executed
    "python",  # there is a Python inside
    "bounded",  # streams pass through without being held in memory
    "network_none",  # there is a network to be cut off from
    "oom",  # memory is limited
    "loops",  # a program keeps running when the event loop that started it ends
]
"""What a check needs from a backend beyond the contract; a fake may list it as unsupported."""
NEEDS: frozenset[str] = frozenset(get_args(Need))
REAL = "shell processes"
"""The needs of most checks that run real programs."""
POWERS = frozenset(
    (
        "detach",
        "pty",
        "views",
        "users",
        "watch",
        "ephemeral",
        "snapshot",
        "fork",
        "stop",
        "pause",
        "resize",
        "dial",
        "expose",
        "secrets",
        "set_network",
        "denials",
        "volumes",
        "diff",
    )
)
"""The optional powers that a check may need. Another check tests that unsupported ones raise CapabilityError."""

Count = Callable[[Backend], int]


class Context:
    """The backend, host folder and sandboxes of a check."""

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
        """Creates a second backend, for checks that close one."""
        self.scratch = scratch
        """A folder of the host."""
        self.powers = powers
        self._count = count
        self._opened: list[AsyncSandbox] = []

    async def open(self, **spec_options: Any) -> AsyncSandbox:
        """Create a sandbox from the keywords of `make_spec`. It is ended after the check."""
        return self.adopt(await self.backend.create(make_spec(**spec_options)))

    def adopt(self, box: AsyncSandbox) -> AsyncSandbox:
        """Have a sandbox that the check created itself ended after the check."""
        self._opened.append(box)
        return box

    async def count(self) -> int:
        """Count the living sandboxes: by `count`, the backend's `count_living()`, or what it lists: detached ones."""
        if self._count is not None:
            return await asyncio.to_thread(self._count, self.backend)
        hook = getattr(self.backend, "count_living", None)
        return int(hook()) if hook is not None else len(await self.backend.list())

    async def wait_for_count(self, wanted: int) -> None:
        """Wait until so many sandboxes live: ending one may take a moment."""
        await until(self.count, wanted, "sandboxes were left behind")

    async def clean_up(self) -> None:
        """End the sandboxes that the check opened."""
        for box in reversed(self._opened):
            with contextlib.suppress(Exception):
                await box.kill()
            with contextlib.suppress(Exception):
                await box.aclose()
        self._opened.clear()


Body = Callable[..., Awaitable[None]]
"""The function of a check. Its parameters may be:

- `context`;
- a new sandbox as `box`, its `files`, and its workdir as `home`;
- `before`: how many sandboxes lived before that one;
- `token`: a text that no other check has, for names and to find processes.
"""


@dataclass(frozen=True, slots=True)
class Check:
    """A test of one promise."""

    name: str
    promise: str
    title: str
    body: Body
    needs: frozenset[str] = frozenset()
    raises: tuple[str, ...] = ()
    """The `Raises:` lines of the contract that it tests, as `method:ErrorClass`."""
    hang_seconds: float = HANG_SECONDS

    async def run(self, context: Context) -> None:
        """Run the check. Raises: AssertionError, or what the backend raises."""
        given: dict[str, Any] = {"context": context, "token": f"check-{secrets.token_hex(8)}"}
        names = inspect.signature(self.body).parameters
        if "before" in names:
            given["before"] = await context.count()
        if names.keys() & {"box", "files", "home"}:
            box = await context.open()
            given |= {"box": box, "files": box.files, "home": box.spec.workdir}
        await self.body(**{name: given[name] for name in names})

    def __str__(self) -> str:
        return f"{self.name} [{self.promise}] {self.title}"


_registry: dict[str, Check] = {}


def check(promise: str, title: str, *, needs: str = "", raises: str = "") -> Callable[[Body], Body]:
    """Register a function as a check.

    Args:
        promise: A rule's number, or the method whose docstring it tests.
        title: The promise in one sentence.
        needs: What it needs from a backend (`Need` and `POWERS`), separated by spaces.
        raises: The `Raises:` lines of the contract that it tests, separated by spaces: `ErrorClass` for a line of that
            method, `method:ErrorClass` for that of another one.
    """
    needed = frozenset(needs.split())
    lines = tuple(line if ":" in line else f"{promise}:{line}" for line in raises.split())

    def register(body: Body) -> Body:
        name = getattr(body, "__name__", "?")
        if name in _registry:
            raise ValueError(f"two checks are named {name!r}")
        if unknown := needed - NEEDS - POWERS:
            raise ValueError(f"{name} has unknown needs: {sorted(unknown)}")
        _registry[name] = Check(name, promise, title, body, needed, lines)
        return body

    return register


def registered() -> tuple[Check, ...]:
    """Give every check that was registered so far, in order."""
    return tuple(_registry.values())


# Running.

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a check; `detail` is the reason of a skip, or the traceback of a failure."""

    name: str
    promise: str
    title: str
    outcome: Outcome
    detail: str = ""

    def to_json(self) -> dict[str, str]:
        """Give it as JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        failed = f"FAILED {self.name} [{self.promise}] {self.title}\n{self.detail}"
        return failed if self.outcome == "failed" else f"{self.outcome} {self.name}: {self.detail}".removesuffix(": ")


async def run_check(
    item: Check,
    backend: Backend,
    *,
    cannot: Mapping[str, str],
    count: Count | None = None,
    scratch: Path | None = None,
    make: Callable[[], Backend] | None = None,
) -> Verdict:
    """Run one check in the current event loop. `cannot` maps names of checks and needs to the reason for a skip."""
    capabilities = await backend.capabilities()
    reason = find_reason(item, capabilities, cannot)
    if reason is not None:
        return Verdict(item.name, item.promise, item.title, "skipped", reason)
    place = tempfile.TemporaryDirectory(prefix="corral-check-") if scratch is None else contextlib.nullcontext(scratch)
    with place as folder:
        context = Context(backend, scratch=Path(folder), powers=capabilities.powers, count=count, make=make)
        detail = ""
        try:
            async with asyncio.timeout(item.hang_seconds):
                await item.run(context)
        except Exception as error:  # noqa: BLE001 - any error of a backend is a verdict here
            detail = "".join(traceback.format_exception(error))
        finally:
            await context.clean_up()
    return Verdict(item.name, item.promise, item.title, "failed" if detail else "passed", detail)


def find_reason(item: Check, capabilities: Capabilities, cannot: Mapping[str, str]) -> str | None:
    """Give the reason why a check is skipped; None if it is run."""
    for name in (item.name, *sorted(item.needs)):
        if name in cannot:
            return cannot[name]
    missing = sorted((item.needs & POWERS) - capabilities.powers)
    return f"capabilities() has no {', '.join(missing)}" if missing else None


# Assertions and data for checks.


async def raises(
    kind: type[BaseException] | tuple[type[BaseException], ...], work: Awaitable[object] | Callable[[], object]
) -> Any:
    """Give the error that `work` must raise: something to await, or a function to call."""
    try:
        result = work() if callable(work) else await work
    except kind as error:
        return error
    names = kind.__name__ if isinstance(kind, type) else " or ".join(one.__name__ for one in kind)
    raise AssertionError(f"should have raised {names}, but gave {_short(result)}")


def equal(actual: object, wanted: object, what: str = "") -> None:
    """Raise AssertionError with both values if they differ."""
    if actual != wanted:
        raise AssertionError(f"{what or 'got'}: {_short(actual)}, and should be {_short(wanted)}")


def true(condition: object, what: str) -> None:
    """`assert` that python -O keeps."""
    if not condition:
        raise AssertionError(what)


async def still_works(box: AsyncSandbox, what: str = "the sandbox no longer runs programs") -> None:
    """Check that a sandbox runs a program."""
    equal((await box.exec(["echo", "fine"])).stdout, "fine\n", what)


@contextlib.contextmanager
def flat_memory() -> Iterator[None]:
    """Check that the memory of this process hardly grows in the block. Checks nothing where /proc does not tell."""
    with contextlib.suppress(OSError):  # not Linux, or an old kernel: then the peak is of the whole life
        Path("/proc/self/clear_refs").write_text("5")
    before = _read_peak()
    yield
    grown = _read_peak() - before
    true(grown < OWN_LIMIT_BYTES, f"our own memory grew by {grown >> 20} MiB")


def _read_peak() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


async def until(ask: Callable[[], Awaitable[Any] | Any], wanted: object, what: str) -> None:
    """Ask again until the answer is the wanted one, for a third of the time that a check may take."""
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


async def write_tree(
    files: AsyncFiles,
    contents: Mapping[str, str],
    *,
    links: Mapping[str, str] | None = None,
    folders: Sequence[str] = (),
) -> None:
    """Write files, links and empty folders into a sandbox."""
    for path, content in contents.items():
        await files.write(path, content)
    for path, target in (links or {}).items():
        await files.symlink(path, target)
    for path in folders:
        await files.mkdir(path)


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    """Give a stream of these parts."""
    for part in parts:
        await asyncio.sleep(0)
        yield part


async def broken() -> AsyncIterator[bytes]:
    """Give a stream that fails in the middle, with ZeroDivisionError."""
    yield b"half"
    raise ZeroDivisionError("of the caller's own")


async def repeat(part: bytes, times: int) -> AsyncIterator[bytes]:
    """Give a long stream that is never in memory as a whole."""
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
