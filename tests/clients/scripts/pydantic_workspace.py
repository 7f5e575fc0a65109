"""pydantic-ai-backend from 0.2.30: DaytonaWorkspace, tried by the conformance suite that Pydantic AI ships.

Two of its rules watch a running command by further commands of the same backend. This backend gives all of them to one
session, and a session is one shell, which runs one after the other. They are tried with a
second backend as the watcher, which has a session of its own.
"""

import anyio
import pytest
from pydantic_ai.workspaces import Workspace, WorkspaceUnavailableError
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite
from pydantic_ai_backends.workspaces import DaytonaWorkspace

GUARD_SECONDS = 60


@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"


async def wait_for(workspace, path) -> None:
    with anyio.fail_after(GUARD_SECONDS):
        while not await workspace.exists(path):
            await anyio.sleep(0.05)


class TestDaytonaWorkspace(WorkspaceBackendSuite):
    workspace = DaytonaWorkspace()

    test_cancellation_stops_foreground_work = None
    test_destroying_environment_during_command_raises_unavailable = None

    @pytest.fixture
    async def backend(self):
        backend = self.workspace.backend()
        yield backend
        await backend.purge()

    @pytest.fixture
    async def fresh_backend(self, destroyed):
        made = []

        def make():
            made.append(self.workspace.backend())
            return made[-1]

        yield make
        for backend in made:
            if backend not in destroyed:
                await backend.purge()

    @pytest.fixture
    def attach_backend(self):
        return self.workspace.backend

    @pytest.fixture
    def destroyed(self):
        return []

    @pytest.fixture
    def destroy_environment(self, destroyed):
        async def destroy(backend):
            destroyed.append(backend)
            await backend.purge()

        return destroy

    async def test_cancellation_stops_foreground_work_as_another_sees_it(self, backend, attach_backend):
        path = (await backend.working_dir()) + "/pid"
        other = attach_backend(backend.ref)
        async with anyio.create_task_group() as group:
            group.start_soon(backend.run, ["sh", "-c", 'echo $$ > "$1"; exec sleep 3600', "sh", path])
            await wait_for(Workspace(other), path)
            group.cancel_scope.cancel()
        pid = (await Workspace(other).read_text(path)).strip()
        with anyio.fail_after(GUARD_SECONDS):
            while (await other.run(["sh", "-c", 'kill -0 "$1"', "sh", pid])).exit_code == 0:
                await anyio.sleep(0.05)

    async def test_destroying_it_during_a_command_raises_unavailable(
        self, fresh_backend, attach_backend, destroy_environment
    ):
        backend = fresh_backend()
        path = (await backend.working_dir()) + "/started"

        async def run_command():
            with pytest.raises(WorkspaceUnavailableError):
                await backend.run(["sh", "-c", 'echo > "$1"; sleep 3600', "sh", path], timeout=GUARD_SECONDS)

        async with anyio.create_task_group() as group:
            group.start_soon(run_command)
            await wait_for(Workspace(attach_backend(backend.ref)), path)
            await destroy_environment(backend)
