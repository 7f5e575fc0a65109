"""Attacks windows by a process on the test ground: around it, and around the gates, is nothing but stand-ins."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from corral.testing.hostile.probe import Finding, Probe, Verdict, unproven
from corral.testing.hostile.run import Outcome

_ARGV = ("-P", "-m", "corral.testing.ground", sys.executable, "-P", "-m", "corral.testing.hostile.window")
_PATIENCE_SECONDS = 60.0
"""How long a probe may take beyond its timeout, the start of the process included."""
_MAX_LINE_BYTES = 1 << 20


@dataclass(slots=True)
class GroundSiege:
    """An attack on the test ground, by a process that is started for the first probe."""

    data_folder: Path
    _errors: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    _child: asyncio.subprocess.Process | None = None

    async def try_probe(self, probe: Probe) -> Outcome:
        """Run one probe and judge it."""
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(probe.timeout + _PATIENCE_SECONDS):
                finding = await self._ask(probe.name)
        except TimeoutError:
            finding = unproven("the process on the test ground does not answer")
            await self._end()
        return Outcome(probe, finding, asyncio.get_running_loop().time() - started)

    async def aclose(self) -> None:
        """End the process, and what it started with it."""
        await self._end()
        self._errors.close()

    async def _ask(self, name: str) -> Finding:
        if self._child is None:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, *_ARGV,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=self._errors,
                limit=_MAX_LINE_BYTES, cwd="/",
                env=os.environ | {"CORRAL_DATA_DIR": str(self.data_folder)},
            )  # fmt: skip
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{name}\n".encode())
        with contextlib.suppress(ConnectionError):
            await self._child.stdin.drain()
        while line := await self._child.stdout.readline():
            if line.startswith(b"{"):
                said = json.loads(line)
                return Finding(Verdict(said["verdict"]), said["evidence"])
        await self._end()
        self._errors.seek(0)
        why = self._errors.read()[-500:].decode(errors="replace").strip()
        return unproven(f"the process on the test ground ended: {why}")

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        child.stdin.close()
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()


@contextlib.asynccontextmanager
async def besiege_on_ground(data_folder: Path | str) -> AsyncIterator[GroundSiege]:
    """Attack windows with one probe at a time. The data folder is that of the sandboxes to attack."""
    siege = GroundSiege(Path(data_folder))
    try:
        yield siege
    finally:
        await siege.aclose()
