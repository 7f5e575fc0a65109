"""Commands that judge, each in a fresh sandbox of its own with the artifacts in `artifact/`.

The artifacts are hostile, and the command may run them. So the command starts in the workdir, outside of `artifact/`;
the judge's own files are written to `judge/` after the artifacts, so that no artifact takes their place; only the
exit code and the last line of standard output count. docs/forge-judges.md says what a command that runs the candidate's
code has to consider; `sealed=True` helps.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from corral.errors import CorralError, JudgeError, SandboxError, SandboxNoSpaceError, SpecError
from corral.forge.calling import do_all, hash_text
from corral.forge.judge.gates import GateBase
from corral.forge.judge.model import Bench, Points
from corral.forge.judge.rounds import RoundScore
from corral.forge.judge.sandboxes import ARTIFACT
from corral.forge.judge.work import Work, make_printable
from corral.forge.judge.worker import refuse_constant
from corral.forge.numbers import is_number
from corral.results import ExecResult
from corral.spec import check_env, check_timeout

FILES = "judge"
"""Below the workdir: where the judge's own files are."""

_KEEP_BYTES = 64 * 1024
_TRIES = 2
_NOT_THERE = (126, 127)
# A shell that does not even find itself says nothing about others.
_LOOK = 'command -v sh > /dev/null || exit 0; command -v -- "$1" > /dev/null'
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_+.-]+|/[A-Za-z0-9_+./-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(GateBase):
    """A command that must end with 0. The last line it prints is the reason when it does not."""

    command: str | Sequence[str] = field(kw_only=False)
    files: Mapping[str, str | bytes] = field(default_factory=dict, repr=False)
    """Files of yours that it needs: name below `judge/` → content."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float | None = None
    """Seconds; None: as the contest's settings say for judges."""

    def __post_init__(self) -> None:
        GateBase.__post_init__(self)
        _check(self)

    async def objection(self, work: Work, bench: Bench) -> str | None:
        if work.folder is None:
            return work.explain_lack()
        return _explain_failure(await _run(self, work, bench))

    def describe_more(self) -> dict[str, Any]:
        return _describe(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandScore(RoundScore):
    """A command that prints points as the last line of its standard output: a number of 0 to 100, or
    `{"points": …, "details": …}`.

    If it fails or its last line is neither, the round has no points and the details say why; with
    `on_failure="error"` that is the judge's failure instead.
    """

    command: str | Sequence[str] = field(kw_only=False)
    files: Mapping[str, str | bytes] = field(default_factory=dict, repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float | None = None
    sealed: bool = False
    """The command gets a random word as the first line of its standard input, and its last line must begin with it.
    For commands that run the candidate's code as a child: what that prints does not count."""
    on_failure: Literal["zero", "error"] = "zero"
    name: str = "command"

    def __post_init__(self) -> None:
        RoundScore.__post_init__(self)
        if self.on_failure not in ("zero", "error"):
            raise SpecError(f"on_failure={self.on_failure!r} is not supported", hint="give zero or error")
        _check(self)

    async def rate_rounds(self, works: Sequence[Work], bench: Bench) -> list[Points]:
        # The bench says how many run at once; a thousand tasks need not wait for it.
        return await do_all(works, lambda work: self._rate_one(work, bench), jobs=16)

    async def _rate_one(self, work: Work, bench: Bench) -> Points:
        seal = secrets.token_hex(16) if self.sealed else ""
        result = await _run(self, work, bench, stdin=f"{seal}\n".encode() if seal else b"")
        failure = _explain_failure(result)
        points = None if isinstance(result, str) or failure else parse_points(result.stdout, seal=seal)
        if points is not None:
            return points
        failure = failure or "the last line of its output is not a number of points"
        if self.on_failure == "error":
            raise JudgeError(failure, candidate=work.candidate)
        return Points(0.0, {"note": failure})

    def describe(self) -> dict[str, Any]:
        return {**_describe(self), "sealed": self.sealed, "on_failure": self.on_failure, "over": self.over}


def _check(judge: Command | CommandScore) -> None:
    words = judge.command if isinstance(judge.command, str) else tuple(judge.command)
    if not all(isinstance(word, str) and "\0" not in word for word in words) or not "".join(words).strip():
        raise SpecError(f"{judge.command!r} is not a command", hint="a text for /bin/sh, or a list of words")
    object.__setattr__(judge, "command", words)
    object.__setattr__(judge, "env", check_env(judge.env))
    object.__setattr__(judge, "files", dict(judge.files))
    for name in judge.files:
        if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
            raise SpecError(f"{name!r} is not the name of a file", hint=f"give a path below {FILES}/, without '..'")
    check_timeout(judge.timeout, what="timeout", error=SpecError)


def _describe(judge: Command | CommandScore) -> dict[str, Any]:
    """Words, and hashes of the files. Of the environment only the names: values may be secret."""
    return {
        "kind": "command",
        "command": judge.command if isinstance(judge.command, str) else list(judge.command),
        "files": {name: hash_text(content) for name, content in judge.files.items()},
        "env": sorted(judge.env),
        "timeout": judge.timeout,
    }


async def _run(judge: Command | CommandScore, work: Work, bench: Bench, *, stdin: bytes = b"") -> ExecResult | str:
    """Run it over one round's artifacts. A text is the reason why it could not end, which is the artifacts' fault.

    Raises:
        JudgeError: no sandbox, or the command does not exist in it.
    """
    for _ in range(_TRIES):
        try:
            async with bench.open(work.folder) as box:
                for name, content in judge.files.items():
                    await box.files.write(f"{FILES}/{name}", content, mode=0o755)
                try:
                    result = await box.exec(
                        judge.command, env=judge.env, stdin=stdin, timeout=judge.timeout or bench.timeout,
                        output_limit_bytes=_KEEP_BYTES,
                    )  # fmt: skip
                except SandboxError:
                    continue  # only this command and the candidate's files were in it
        except SandboxNoSpaceError:
            return "the artifacts do not fit into a sandbox"
        except (CorralError, TimeoutError) as error:
            raise JudgeError(f"could not create a sandbox for the judge: {error}", candidate=work.candidate) from error
        program = _find_program(judge.command)
        if result.exit_code in _NOT_THERE and not await _exists(program, bench):
            raise JudgeError(
                f"the command {program!r} does not exist in the judge's sandbox", candidate=work.candidate,
                hint="install it in the contest's setup, or use another command",
            )  # fmt: skip
        return result
    return "the sandbox failed while the command ran, twice"


def _find_program(command: str | Sequence[str]) -> str:
    """The program, if the command shows it; else empty."""
    if not isinstance(command, str):
        return command[0]
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        return ""
    return words[0] if words and _PLAIN_WORD.fullmatch(words[0]) else ""


async def _exists(program: str, bench: Bench) -> bool:
    """Whether the program exists in a sandbox without the candidate's files: if not, the judge failed."""
    if not program or program.startswith((f"{ARTIFACT}/", f"{FILES}/", "./", "../")):
        return True
    async with bench.open() as box:
        try:
            found = await box.exec(["/bin/sh", "-c", _LOOK, "judge", program], timeout=bench.timeout)
        except CorralError:
            return True  # unknown
    return found.exit_code == 0


def _explain_failure(result: ExecResult | str) -> str | None:
    """Why a command failed, with the last line that it printed; None if it succeeded."""
    if isinstance(result, str):
        return result
    if result.reason == "exited" and result.exit_code == 0:
        return None
    end = (result.stderr.strip() or result.stdout.strip()).rpartition("\n")[2]
    how = {"timeout": "timed out", "oom": "out of memory"}.get(result.reason, f"exit code {result.exit_code}")
    return f"{how}: {make_printable(end, limit=200)}" if end else how


def parse_points(output: str, *, seal: str = "") -> Points | None:
    """The points on the last line; None if that line has no points. Lines before it are ignored."""
    line = output.rstrip().rpartition("\n")[2].strip()
    if seal:
        word, _, line = line.partition(" ")
        if not secrets.compare_digest(word.encode("utf-8", "replace"), seal.encode()):
            return None
    try:
        found: Any = json.loads(line, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None
    details: Any = {}
    if isinstance(found, dict):
        found, details = found.get("points"), found.get("details", {})
    if not is_number(found):
        return None
    return Points(float(found), details if isinstance(details, dict) else {"details": details})
