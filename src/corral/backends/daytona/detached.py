"""Detached programs: each runs in its own session of the service, which records its output."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Unpack

from corral.backends.daytona.remote import Remote
from corral.base.command import show_command
from corral.errors import CapabilityError, SandboxGoneError
from corral.paths import inside
from corral.protocol import Command, DetachedOptions
from corral.sessions.detached import DetachedProgram, choose
from corral.spec import USER, Spec, check_argv, check_env, check_keywords

_PREFIX = "corral-kept-"  # as release 0.1 named them: its programs are found
_NAME = re.compile(re.escape(_PREFIX) + r"(\d{1,9})")
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class _Found(DetachedProgram):
    """A program, and its command in its session."""

    command_id: str | None = field(kw_only=True)


async def start(remote: Remote, spec: Spec, command: Command, **options: Unpack[DetachedOptions]) -> int:
    """Start a program; returns its number."""
    check_keywords(options, DetachedOptions, "start_detached")
    cwd, env, user, timeout = options.get("cwd"), options.get("env") or {}, options.get("user"), options.get("timeout")
    if user not in (None, USER, "1000"):
        raise CapabilityError(f"user={user!r}: the service runs every program as the same user", op="exec")
    argv = check_argv(command)
    words = ["env", *(f"{name}={value}" for name, value in check_env({**spec.env, **env}).items())]
    if timeout is not None:
        words += ["timeout", "-k", "5", f"{timeout:g}"]
    folder = inside(cwd, workdir=spec.workdir) if cwd is not None else spec.workdir
    text = f"cd {shlex.quote(folder)} && {shlex.join([*words, *argv])} </dev/null 2>&1 # {_shown(argv)}"
    number = max([program.number for program in await list_all(remote)], default=0) + 1
    session = f"{_PREFIX}{number}"

    async def start(box: Any) -> None:
        from daytona import SessionExecuteRequest

        await box.process.create_session(session)
        await box.process.execute_session_command(session, SessionExecuteRequest(command=text, run_async=True))

    await remote.call(start, op="exec", finish=True)
    return number


async def follow_one(remote: Remote, sandbox_id: str, number: int | None, *, follow: bool) -> AsyncIterator[bytes]:
    """As `Backend.follow_detached`."""
    program = choose(await list_all(remote), sandbox_id, number)
    sent = 0
    while True:
        data = await _read(remote, program)
        if len(data) > sent:
            yield data[sent:]
            sent = len(data)
        if not (follow and program.running):
            return
        await asyncio.sleep(_LOOK_SECONDS)
        with contextlib.suppress(SandboxGoneError):
            program = choose(await list_all(remote), sandbox_id, program.number)


async def list_all(remote: Remote) -> list[_Found]:
    """As `Backend.list_detached`."""
    sessions = await remote.call(lambda box: box.process.list_sessions(), op="logs", safe=True)
    found = []
    for session in sessions:
        if (match := _NAME.fullmatch(session.session_id)) is not None:
            last = session.commands[-1] if session.commands else None
            found.append(
                _Found(
                    number=int(match[1]),
                    text=last.command.rpartition(" # ")[2] if last else "",
                    running=last is not None and last.exit_code is None,
                    exit_code=last.exit_code if last else None,
                    command_id=last.id if last else None,
                )
            )
    return sorted(found, key=lambda program: program.number)


async def _read(remote: Remote, program: _Found) -> bytes:
    session, command = f"{_PREFIX}{program.number}", program.command_id or ""
    logs = await remote.call(lambda box: box.process.get_session_command_logs(session, command), op="logs", safe=True)
    return (str(logs.stdout or "") + str(logs.stderr or "")).encode()


def _shown(argv: tuple[str, ...]) -> str:
    return " ".join(show_command(argv).split()).replace(" # ", " ")[:200]
