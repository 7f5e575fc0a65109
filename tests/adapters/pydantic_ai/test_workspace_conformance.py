"""CorralWorkspace keeps the whole contract of Pydantic AI's workspaces, on every backend that runs programs here."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from corral.adapters.pydantic_ai import CorralWorkspace
from corral.backends.daytona import DaytonaBackend
from corral.backends.docker import DockerBackend
from corral.concurrency.portal import get_portal
from corral.protocol import Backend
from support.dockerd import Daemon
from support.serving import ServedProcess

Made = list[CorralWorkspace]


class Contract(WorkspaceBackendSuite):
    """The suite, with every optional rule switched on."""

    @pytest.fixture
    def maker(self) -> str | Backend:
        """The backend of Corral's that makes the environments."""
        raise NotImplementedError

    @pytest.fixture
    async def made(self) -> AsyncIterator[Made]:
        """Every workspace that a test makes; ended with it."""
        workspaces: Made = []
        yield workspaces
        for workspace in workspaces:
            await workspace.destroy()
            await workspace.aclose()

    @pytest.fixture
    async def backend(self, maker: str | Backend, made: Made) -> WorkspaceBackend:
        workspace = CorralWorkspace(backend=maker)
        made.append(workspace)
        return workspace

    @pytest.fixture
    def fresh_backend(self, maker: str | Backend, made: Made) -> Callable[[], WorkspaceBackend]:
        def make() -> CorralWorkspace:
            made.append(CorralWorkspace(backend=maker))
            return made[-1]

        return make

    @pytest.fixture
    def attach_backend(self, maker: str | Backend, made: Made) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        def attach(ref: WorkspaceRef) -> CorralWorkspace:
            made.append(CorralWorkspace(ref, backend=maker))
            return made[-1]

        return attach

    @pytest.fixture
    def destroy_environment(self) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        async def destroy(backend: WorkspaceBackend) -> None:
            assert isinstance(backend, CorralWorkspace)
            await backend.destroy()

        return destroy


@pytest.mark.needs_userns
class TestEmbedded(Contract):
    """On the embedded engine."""

    @pytest.fixture
    def maker(self) -> str:
        return "embedded"


@pytest.fixture(scope="module")
def service(server: ServedProcess) -> Iterator[Backend]:
    """The daytona backend in front of `corral serve`."""
    backend = DaytonaBackend(api_key=server.key, api_url=server.url)
    yield backend
    get_portal().run(backend.aclose())


@pytest.mark.needs_userns
@pytest.mark.backends
class TestDaytona(Contract):
    """On a Daytona service, which here is `corral serve`: through both ends of the wire."""

    @pytest.fixture
    def maker(self, service: Backend) -> Backend:
        return service


@pytest.fixture(scope="module")
def docker(daemon: Daemon) -> Iterator[Backend]:
    """The docker backend at a daemon of the tests' own."""
    backend = DockerBackend(host=daemon.host, image=daemon.image)
    yield backend
    get_portal().run(backend.aclose())


@pytest.mark.needs_docker
@pytest.mark.backends
class TestDocker(Contract):
    """On Docker."""

    @pytest.fixture
    def maker(self, docker: Backend) -> Backend:
        return docker


class TestMemory(Contract):
    """On the fake: every rule that needs no shell, no signals, no links and no permissions inside."""

    @pytest.fixture
    def maker(self) -> str:
        return "memory"

    test_stdin_is_at_eof = None
    test_undecodable_command_bytes_are_replaced = None
    test_command_output_is_complete = None
    test_background_child_does_not_hold_up_completed_command = None
    test_result_reports_exit_code_stdout_and_stderr = None
    test_argv_items_are_literal = None
    test_cancellation_stops_foreground_work = None
    test_env_is_added = None
    test_commands_and_files_share_one_environment = None
    test_symlink_loop_does_not_break_listing = None
    test_fifo_read_does_not_wait_for_writer = None
    test_permission_denied_uses_builtin_error = None
    test_realpath_and_entries_follow_symlinks = None
    test_writes_go_through_a_symlink = None
    test_destroying_environment_during_command_raises_unavailable = None

    @pytest.fixture
    def has_real_posix_shell(self) -> bool:
        return False
