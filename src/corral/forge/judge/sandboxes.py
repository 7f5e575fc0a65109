"""Fresh sandboxes for judges, a limited number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from corral.client.sandbox import AsyncSandbox
from corral.errors import SpecError
from corral.protocol import Backend
from corral.spec import Spec, check_count, check_timeout

ARTIFACT = "artifact"
"""Below the workdir: where a candidate's artifacts are."""


class SandboxBench:
    """Sandboxes of one backend, each created from the same spec, used by one judge, and closed.

    `timeout`, also an attribute, is in seconds for one command. `prepare` runs in each before any file of a candidate
    is in it. The bench itself needs no closing.
    """

    def __init__(
        self,
        backend: Backend,
        spec: Spec,
        *,
        timeout: float = 120.0,
        open_timeout: float = 120.0,
        jobs: int = 2,
        prepare: Callable[[AsyncSandbox], Awaitable[object]] | None = None,
    ) -> None:
        check_count(jobs, what="jobs")
        for what, value in (("timeout", timeout), ("open_timeout", open_timeout)):
            check_timeout(value, what=what, error=SpecError)
        self._backend = backend
        self._spec = spec
        self.timeout = timeout
        """Seconds for one command."""
        self._open_timeout = open_timeout
        self._jobs = jobs
        self._prepare = prepare
        self._seats: asyncio.Semaphore | None = None

    @asynccontextmanager
    async def open(self, files: Path | None = None) -> AsyncIterator[AsyncSandbox]:
        """A sandbox with the folder's content under `artifact/`, which is empty without a folder.

        It is closed at the end of the block. Raises: as `Backend.create`; TimeoutError.
        """
        if self._seats is None:
            self._seats = asyncio.Semaphore(self._jobs)  # created here: it belongs to the loop that uses it
        async with self._seats:
            async with asyncio.timeout(self._open_timeout):
                box = await self._backend.create(self._spec)
            try:
                async with asyncio.timeout(self._open_timeout):
                    await self._lay_out(box, files)
                yield box
            finally:
                await box.aclose()

    async def _lay_out(self, box: AsyncSandbox, files: Path | None) -> None:
        if self._prepare is not None:
            await self._prepare(box)
        if files is not None:
            await box.files.upload(files, ARTIFACT)
        else:
            await box.files.mkdir(ARTIFACT)
