"""pydantic-ai-backend from 0.2.30: DaytonaWorkspace, tried by the conformance suite that Pydantic AI ships."""

import pytest
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite
from pydantic_ai_backends.workspaces import DaytonaWorkspace


@pytest.fixture(scope="session")
def anyio_backend():
    return "asyncio"


class TestDaytonaWorkspace(WorkspaceBackendSuite):
    workspace = DaytonaWorkspace()

    @pytest.fixture
    async def backend(self):
        backend = self.workspace.backend()
        yield backend
        await backend.purge()

    @pytest.fixture
    async def fresh_backend(self):
        made = []

        def make():
            made.append(self.workspace.backend())
            return made[-1]

        yield make
        for backend in made:
            await backend.purge()

    @pytest.fixture
    def attach_backend(self):
        return self.workspace.backend

    @pytest.fixture
    def destroy_environment(self):
        async def destroy(backend):
            await backend.purge()

        return destroy
