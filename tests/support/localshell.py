"""The shell of this machine, for `ShellFiles`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Sequence

from corral.base.shellfiles.primitives import ScriptEnd


class LocalRun:
    """A script as a process of this machine."""

    def __init__(self, process: asyncio.subprocess.Process, stdin: AsyncIterable[bytes] | None) -> None:
        self._process = process
        self._feeding = asyncio.ensure_future(self._feed(stdin))
        assert process.stderr is not None
        self._stderr = asyncio.ensure_future(process.stderr.read())

    async def _feed(self, stdin: AsyncIterable[bytes] | None) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        try:
            if stdin is not None:
                async for piece in stdin:
                    pipe.write(piece)
                    await pipe.drain()
        except Exception:  # noqa: BLE001 - as the protocol has it: the input ends there
            pass
        pipe.close()

    async def stdout(self) -> AsyncIterator[bytes]:
        assert self._process.stdout is not None
        while piece := await self._process.stdout.read(65536):
            yield piece

    async def end(self) -> ScriptEnd:
        return ScriptEnd(await self._process.wait(), await self._stderr)

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        self._feeding.cancel()
        await asyncio.gather(self._feeding, self._stderr, return_exceptions=True)


class LocalShell:
    """Runs scripts here, with a shell of choice, and other programs before the usual ones if a folder has some."""

    def __init__(self, *shell: str, programs: str = "") -> None:
        self._shell = shell or ("/bin/sh",)
        self._path = f"{programs}:/usr/bin:/bin".lstrip(":")

    async def run(
        self, script: str, args: Sequence[str] = (), *, stdin: AsyncIterable[bytes] | None = None
    ) -> LocalRun:
        pipe = asyncio.subprocess.PIPE
        words = [*self._shell, "-c", script, "sh", *args]
        process = await asyncio.create_subprocess_exec(
            *map(os.fsencode, words), stdin=pipe, stdout=pipe, stderr=pipe, cwd="/",
            env={"LC_ALL": "C", "PATH": self._path},
        )  # fmt: skip
        return LocalRun(process, stdin)
