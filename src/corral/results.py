"""Results of calls, with everything the core knows."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

EndReason = Literal["exited", "signalled", "timeout", "oom", "cancelled"]
FileKind = Literal["file", "folder", "link", "fifo", "socket", "device", "other"]
SandboxState = Literal["running", "paused", "stopped"]
StreamName = Literal["stdout", "stderr"]
DenialRule = Literal[
    "policy", "private", "no network", "connections", "rate", "bytes", "tls", "host", "secret", "protocol"
]
"""Why the network of a sandbox refuses an attempt."""

TIMEOUT_EXIT_CODE = 124
NOT_FOUND_EXIT_CODE = 127
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """Resource use. None: not measured; `notes` says what is missing or approximate."""

    wall_seconds: float
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SandboxUsage:
    """Current and total resource use of a sandbox, from the kernel's counters."""

    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    peak_memory_bytes: int | None = None
    processes: int | None = None
    disk_bytes: int | None = None
    oom_kills: int = 0


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """A piece of output."""

    stream: StreamName
    data: bytes

    @property
    def text(self) -> str:
        """This piece decoded; a character split between two pieces shows as U+FFFD."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Denial:
    """An attempt to reach the network that was refused."""

    host: str
    """The name or address that was asked for."""
    port: int | None
    """None for a lookup of a name, which has no port."""
    rule: str
    """Why: `policy` (not in the list), `private` (an address that is never reached unless listed), `no network`,
    `connections`, `rate`, `bytes` (a limit), `tls` (the name in TLS is another one), `host` (the name in the request is
    another one), `secret` (a secret can't be put into it), or `protocol` (not understood)."""
    count: int = 1
    """How often in a row."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.host if self.port is None else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a program ended and what it printed.

    `stdout` and `stderr` are separate, `output` has both in the order they were written (on the embedded engine
    exactly for the first 64 KiB, closely after that). Bytes that are not UTF-8 are shown as U+FFFD and counted in
    `replaced_bytes`; the bytes themselves are in `stdout_bytes` and `stderr_bytes`. When more was printed than the
    limit, the middle is cut out, a line says how much, and `truncated` is true.
    """

    exit_code: int
    reason: EndReason
    usage: Usage
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    output_bytes: bytes = b""
    signal: int | None = None
    truncated: bool = False
    stdout_total_bytes: int = 0
    stderr_total_bytes: int = 0
    limit: str | None = None
    """Which limit of the sandbox killed the program, if `reason` does not say it.

    `disk`; `locks`: too many file locks; `pipes`, `descriptors` and `watches`: too many pipes, descriptors in flight,
    or epoll watches, while the user of the host was short of them.
    """
    denied: tuple[Denial, ...] = ()
    """What the sandbox tried to reach while the program ran, and was refused. Calls that run at the same time share
    them: the network of a sandbox does not tell whose attempt it was."""

    @property
    def stdout(self) -> str:
        """Standard output as text."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def output(self) -> str:
        """Both, in order, as text."""
        return self.output_bytes.decode("utf-8", "replace")

    @property
    def replaced_bytes(self) -> int:
        """How many bytes of `output` were not UTF-8."""
        # Each of them is decoded to one surrogate.
        text = self.output_bytes.decode("utf-8", "surrogateescape")
        return sum("\udc80" <= character <= "\udcff" for character in text)

    @property
    def ok(self) -> bool:
        """True if the program exited with code 0."""
        return self.exit_code == 0 and self.reason == "exited"

    @property
    def timed_out(self) -> bool:
        """True if the program timed out."""
        return self.reason == "timeout"


class Pictures:
    """The pictures that the code showed, as PNG. They are untrusted data from inside the sandbox."""

    __slots__ = ()

    def _shown(self) -> Iterable[object]:
        """Candidates for pictures: base64 from inside the sandbox, unchecked."""
        return ()

    @property
    def pngs(self) -> tuple[bytes, ...]:
        """All pictures, in the order in which they were shown."""
        return tuple(found for text in self._shown() if (found := _decode_png(text)) is not None)

    @property
    def png(self) -> bytes | None:
        """The last picture; None if the code showed no picture."""
        return self.pngs[-1] if self.pngs else None

    def save_png(self, path: str | Path) -> Path:
        """Write the last picture to a file on this machine; returns its path. Raises: LookupError without a picture."""
        picture = self.png
        if picture is None:
            raise LookupError("no picture: the code did not call matplotlib's show()")
        file = Path(path)
        file.write_bytes(picture)
        return file


def _decode_png(text: object) -> bytes | None:
    if not isinstance(text, str):
        return None
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        return None
    return data if data.startswith(_PNG) else None


@dataclass(frozen=True, slots=True)
class CodeResult(Pictures, ExecResult):
    """How a snippet ended; `language` is the one it was run as."""

    language: str = ""
    charts: tuple[Mapping[str, Any], ...] = ()
    """With `charts=True`: the figures as data, each with its picture under `png`, in base64."""

    def _shown(self) -> Iterable[object]:
        return (chart.get("png") for chart in self.charts)


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file or folder inside."""

    path: str
    kind: FileKind
    size: int
    mode: int
    modified: float
    uid: int
    gid: int
    target: str | None = None
    file_id: str | None = field(default=None, compare=False)
    """Equal for all hard links to one file, if the backend reports it; only for comparison."""
    links: int | None = field(default=None, compare=False)
    """The number of hard links to the file, if the backend reports it."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2] or "/"

    @property
    def is_folder(self) -> bool:
        """True if it is a folder."""
        return self.kind == "folder"


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """The result of a download: `left_out` are git files that the host would run, by their paths in the folder.

    Files that exist on the host with the same content are not listed.
    """

    left_out: tuple[str, ...] = ()

    def describe(self) -> str:
        """A readable sentence; empty if nothing was left out."""
        if not self.left_out:
            return ""
        named = ", ".join(repr(name) for name in self.left_out[:5])
        more = f" and {len(self.left_out) - 5} more" if len(self.left_out) > 5 else ""
        return f"git settings from the sandbox were left out, because git would run them here: {named}{more}"


@dataclass(frozen=True, slots=True)
class GlobResult:
    """Paths that match; `unreadable` are folders that could not be read."""

    files: tuple[FileInfo, ...]
    truncated: bool = False
    unreadable: tuple[str, ...] = ()

    @property
    def paths(self) -> list[str]:
        """Only the paths."""
        return [file.path for file in self.files]


@dataclass(frozen=True, slots=True)
class GrepMatch:
    """One line."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class GrepResult:
    """Lines that match; `unreadable` are files and folders that could not be read."""

    matches: tuple[GrepMatch, ...]
    truncated: bool = False
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EditResult:
    """The result of an edit; `sha256` is of the new content, for the next compare-and-swap."""

    path: str
    replacements: int
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class ReplaceResult:
    """The result of `replace`: path → number of replacements."""

    replacements: dict[str, int]
    unreadable: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """The sum of all replacements."""
        return sum(self.replacements.values())


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A change in a watched tree."""

    path: str
    kind: Literal["created", "modified", "written", "removed"]
    folder: bool = False


def timestamp(seconds: float) -> str:
    """Unix time as a text of ISO 8601 in UTC: `2026-01-31T12:00:00.000Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


OWNER_LABEL = "corral.owner"
"""The label with which a program such as the server marks its own sandboxes."""
OWNER_ID_LABEL, OWNER_NAME_LABEL = "corral.sandbox", "corral.name"
"""The id and the name of the sandbox for that program and its clients."""
OWNER_LABELS = (OWNER_LABEL, OWNER_ID_LABEL, OWNER_NAME_LABEL)


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """A sandbox in a list."""

    sandbox_id: str
    backend: str
    name: str | None = None
    state: SandboxState = "running"
    created: float = 0.0
    deadline: float | None = None
    """Seconds left of its lifetime; None if it is unlimited."""
    labels: dict[str, str] = field(default_factory=dict)
    network: str | None = None
    """What it may reach, as `network=` takes it; None if the backend does not tell."""

    @property
    def owner(self) -> str | None:
        """The owner: `server:NAME` for a sandbox of `corral serve` in the organisation NAME; None for all others."""
        return self.labels.get(OWNER_LABEL)


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot in a list."""

    snapshot_id: str
    backend: str
    name: str | None = None
    sandbox_id: str | None = None
    """The sandbox it was taken of, which may no longer exist."""
    created: float = 0.0
    size_bytes: int | None = None
    """Its size without the snapshots below it; None if unknown."""


@dataclass(frozen=True, slots=True)
class VolumeInfo:
    """A volume in a list."""

    volume_id: str
    backend: str
    name: str
    created: float = 0.0
    size_bytes: int | None = None
    """Its quota, which the kernel enforces; None: only the disk itself is a limit."""
    used_bytes: int | None = None
    """What its files take on the disk; None if unknown."""
    used: float | None = None
    """When a sandbox mounted it last."""
    sandboxes: tuple[str, ...] = ()
    """The ids of the sandboxes that use it, running or stopped."""


@dataclass(frozen=True, slots=True)
class FolderChange:
    """What a sandbox has changed in a folder of the host that is mounted with mode "copy" or "overlay"."""

    path: str
    """The path below the folder. It may have any characters but NUL."""
    kind: Literal["added", "modified", "deleted"]
    file: Literal["file", "folder", "link"]
    """What it is now, or was."""
    conflict: bool = False
    """True if the host's file is not the one that the sandbox began with: `apply` refuses to replace it."""


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """What `apply` has changed on the host."""

    changes: tuple[FolderChange, ...] = ()
    left_out: tuple[str, ...] = ()
    """Paths that were left as they are on the host: links that lead out of the folder, and files that make git run
    programs; also deleted files that the host has changed."""


DERIVED_POWERS = frozenset({"sessions", "interpreter"})
"""The powers that `AsyncSandbox` derives from `spawn`: every backend that runs real programs has them."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend supports: each limit is `hard` (enforced by the kernel), `soft` (by sampling) or `none`."""

    isolation: str
    memory: Literal["hard", "soft", "none"]
    processes: Literal["hard", "soft", "none"]
    cpu: Literal["hard", "soft", "none"]
    disk: Literal["hard", "soft", "none"]
    network: tuple[str, ...] = ("none",)
    powers: frozenset[str] = frozenset()
    """Supported optional operations: `detach`, `pty`, `views`, `users`, `watch` …"""
    notes: tuple[str, ...] = ()
    locks: Literal["hard", "soft", "none"] = "none"
    """File locks, whose memory no cgroup counts: at best they are sampled."""
    shares: frozenset[str] = frozenset()
    """Resources that a sandbox shares with the host's user and other sandboxes: `devices`, whose nodes can be watched
    and locked, and `user`, the kernel's counters of one user."""

    @property
    def limits(self) -> Literal["hard", "soft"]:
        """`soft` if one of memory, processes, cpu, disk is not enforced by the kernel."""
        return "hard" if {self.memory, self.processes, self.cpu, self.disk} == {"hard"} else "soft"


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a sandbox, for `on_event` and the log. Contains no content of files or output."""

    kind: str
    sandbox_id: str
    backend: str
    details: dict[str, str | int | float | bool | None] = field(default_factory=dict)
