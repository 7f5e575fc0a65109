"""Programs that run on in a sandbox without us, with a log that the service keeps: one session of its own for each."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from corral.backends.daytona import life
from corral.backends.daytona.client import Client
from corral.backends.daytona.remote import Remote
from corral.base.command import check_argv, show_command
from corral.errors import CapabilityError, SandboxGoneError
from corral.paths import inside
from corral.protocol import Command
from corral.spec import USER, check_env

_PREFIX = "corral-kept-"
_NAME = re.compile(re.escape(_PREFIX) + r"(\d{1,9})")
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class KeptProgram:
    """One of them."""

    number: int
    text: str
    exit_code: int | None
    command_id: str | None

    @property
    def state(self) -> str:
        """Whether it still runs."""
        return "running" if self.exit_code is None and self.command_id is not None else "ended"

    @property
    def session(self) -> str:
        """The session it runs in."""
        return f"{_PREFIX}{self.number}"


class KeptPrograms:
    """A backend's side."""

    _client: Client

    if TYPE_CHECKING:

        async def find(self, wanted: str, op: str) -> Any: ...

    async def start_kept(
        self,
        sandbox_id: str,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Start one; gives its number. Raises: as `exec`."""
        if user not in (None, USER, "1000"):
            raise CapabilityError(f"user={user!r}: the service runs every program as the same user", op="exec")
        argv = check_argv(command)
        remote, spec = await self._reach(sandbox_id)
        words = ["env", *(f"{name}={value}" for name, value in check_env({**spec.env, **(env or {})}).items())]
        if timeout is not None:
            words += ["timeout", "-k", "5", f"{timeout:g}"]
        folder = inside(cwd, workdir=spec.workdir) if cwd is not None else spec.workdir
        text = f"cd {shlex.quote(folder)} && {shlex.join([*words, *argv])} </dev/null 2>&1 # {_shown(argv)}"
        number = max([program.number for program in await self._programs(remote)], default=0) + 1
        session = f"{_PREFIX}{number}"

        async def start(box: Any) -> None:
            from daytona import SessionExecuteRequest

            await box.process.create_session(session)
            await box.process.execute_session_command(session, SessionExecuteRequest(command=text, run_async=True))

        await remote.call(start, op="exec", finish=True)
        return number

    async def list_kept(self, sandbox_id: str) -> Sequence[KeptProgram]:
        """Oldest first."""
        remote, _ = await self._reach(sandbox_id)
        return await self._programs(remote)

    async def follow_kept(self, sandbox_id: str, number: int | None, *, follow: bool) -> AsyncIterator[bytes]:
        """What the one of that number has printed (of None: the latest); with `follow`, until it ends.

        Raises:
            SandboxGoneError: there is none.
        """
        remote, _ = await self._reach(sandbox_id)
        program = _choose(await self._programs(remote), sandbox_id, number)
        told = 0
        while True:
            running = program.state == "running"
            data = await _read(remote, program)
            if len(data) > told:
                yield data[told:]
                told = len(data)
            if not (follow and running):
                return
            await asyncio.sleep(_LOOK_SECONDS)
            with contextlib.suppress(SandboxGoneError):
                program = _choose(await self._programs(remote), sandbox_id, program.number)

    async def _reach(self, sandbox_id: str) -> tuple[Remote, Any]:
        box = await self.find(sandbox_id, "exec")
        return Remote(self._client, box.id, box), life.spec_of(box)

    async def _programs(self, remote: Remote) -> list[KeptProgram]:
        sessions = await remote.call(lambda box: box.process.list_sessions(), op="logs", safe=True)
        found = []
        for session in sessions:
            if (match := _NAME.fullmatch(session.session_id)) is not None:
                last = session.commands[-1] if session.commands else None
                found.append(
                    KeptProgram(
                        number=int(match[1]),
                        text=last.command.rpartition(" # ")[2] if last else "",
                        exit_code=last.exit_code if last else None,
                        command_id=last.id if last else None,
                    )
                )
        return sorted(found, key=lambda program: program.number)


async def _read(remote: Remote, program: KeptProgram) -> bytes:
    session, command = program.session, program.command_id or ""
    logs = await remote.call(lambda box: box.process.get_session_command_logs(session, command), op="logs", safe=True)
    return (str(logs.stdout or "") + str(logs.stderr or "")).encode()


def _shown(argv: tuple[str, ...]) -> str:
    return " ".join(show_command(argv).split()).replace(" # ", " ")[:200]


def _choose(programs: Sequence[KeptProgram], sandbox_id: str, number: int | None) -> KeptProgram:
    if not programs:
        raise SandboxGoneError(
            f"no background program found in {sandbox_id!r}",
            hint=f"`corral sandbox exec -d {sandbox_id} -- …` starts one",
        )
    for program in programs:
        if program.number == number:
            return program
    if number is None:
        return programs[-1]
    known = ", ".join(str(program.number) for program in programs)
    raise SandboxGoneError(f"there is no program {number} in {sandbox_id!r}", hint=f"there are {known}")
