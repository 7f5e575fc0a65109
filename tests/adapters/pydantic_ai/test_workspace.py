"""What CorralWorkspace promises beyond the conformance suite."""

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
from pydantic_ai.workspaces import (
    SupportsCommands,
    SupportsFilesystem,
    SupportsRealpath,
    Workspace,
    WorkspaceBackend,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from corral import AsyncSandbox, BackendUnavailableError, get_backend
from corral.adapters.pydantic_ai import CorralWorkspace
from corral.spec import Spec

pytestmark = pytest.mark.needs_userns


@pytest.fixture
async def workspace() -> AsyncIterator[CorralWorkspace]:
    workspace = CorralWorkspace()
    yield workspace
    await workspace.destroy()
    await workspace.aclose()


def test_it_has_every_optional_part() -> None:
    workspace = CorralWorkspace()
    for part in (WorkspaceBackend, SupportsCommands, SupportsFilesystem, SupportsRealpath):
        assert isinstance(workspace, part)
    assert workspace.ref is None


@pytest.mark.parametrize(
    "ref",
    [
        WorkspaceRef(provider="local", id="/tmp"),
        WorkspaceRef(provider="corral", id="nothing"),
        WorkspaceRef(provider="corral", id="docker:123"),
    ],
    ids=["another provider", "no backend", "another backend"],
)
def test_a_ref_of_somebody_else_is_refused(ref: WorkspaceRef) -> None:
    with pytest.raises(ValueError, match=r"is not a (Corral )?workspace"):
        CorralWorkspace(ref)


async def test_whoever_is_cancelled_while_it_is_made_leaves_it_to_the_others() -> None:
    workspace = CorralWorkspace(backend="embedded")
    first = asyncio.create_task(workspace.working_dir())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    try:
        assert await workspace.working_dir() == "/home/daytona"
        assert workspace.ref is not None
        listed = [info.sandbox_id for info in await AsyncSandbox.list()]
        assert listed.count(workspace.ref.id.partition(":")[2]) == 1
    finally:
        await workspace.destroy()
        await workspace.aclose()


def test_it_outlives_the_event_loop_in_which_it_was_made() -> None:
    workspace = CorralWorkspace()
    asyncio.run(workspace.write_bytes("/home/daytona/a.txt", b"kept"))
    try:
        assert asyncio.run(workspace.read_bytes("/home/daytona/a.txt")) == b"kept"
    finally:
        asyncio.run(workspace.destroy())
        asyncio.run(workspace.aclose())


async def test_a_failed_making_is_tried_again_by_the_next() -> None:
    class Moody:
        """Can't the first time."""

        name = "embedded"
        attempts = 0

        async def create(self, spec: Spec) -> AsyncSandbox:
            self.attempts += 1
            if self.attempts == 1:
                raise BackendUnavailableError("not now")
            box = await get_backend("embedded").create(spec)
            assert isinstance(box, AsyncSandbox)
            return box

    workspace = CorralWorkspace(backend=Moody())  # type: ignore[arg-type]
    with pytest.raises(BackendUnavailableError):
        await workspace.working_dir()
    assert workspace.ref is None
    assert await workspace.working_dir() == "/home/daytona"
    await workspace.destroy()
    await workspace.aclose()


async def test_out_of_time_has_what_was_printed(workspace: CorralWorkspace) -> None:
    with pytest.raises(WorkspaceTimeoutError) as caught:
        await workspace.run("echo out; echo err >&2; sleep 60", shell=True, timeout=2.5)
    assert (caught.value.stdout, caught.value.stderr) == ("out\n", "err\n")


async def test_a_flood_is_ended_and_its_beginning_kept(workspace: CorralWorkspace) -> None:
    with pytest.raises(WorkspaceOutputLimitError) as caught:
        await workspace.run("echo warning >&2; yes", shell=True)  # without a limit it never ends
    assert caught.value.stdout.startswith("y\ny\n")
    assert caught.value.stderr == "warning\n"
    assert caught.value.limit == 10 * 1024 * 1024
    assert (await workspace.run(["pgrep", "-x", "yes"])).stdout == ""


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), True])
async def test_a_timeout_that_can_not_be_is_a_value_error(workspace: CorralWorkspace, timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        await workspace.run(["true"], timeout=timeout)


async def test_relative_paths_are_refused_by_the_backend_itself(workspace: CorralWorkspace) -> None:
    for call in (workspace.read_bytes, workspace.stat, workspace.list_dir, workspace.remove, workspace.realpath):
        with pytest.raises(ValueError, match="not absolute"):
            await call("a.txt")


async def test_the_working_directory_may_be_a_link(workspace: CorralWorkspace) -> None:
    await workspace.run("mkdir -p real/deep && ln -s real/deep door", shell=True)
    inner = CorralWorkspace(workdir="/home/daytona/door")
    try:
        facade = Workspace(inner)
        await facade.write_text("a.txt", "x")
        assert (await facade.run(["cat", "a.txt"])).stdout == "x"
    finally:
        await inner.destroy()
        await inner.aclose()


async def test_a_working_directory_that_was_removed_is_unavailable(workspace: CorralWorkspace) -> None:
    inner = CorralWorkspace(workdir="/tmp/place")
    try:
        assert await inner.working_dir() == "/tmp/place"
        await inner.run("rm -r /tmp/place", shell=True)
        with pytest.raises(WorkspaceUnavailableError):
            await inner.run(["true"])
        with pytest.raises((WorkspaceUnavailableError, FileNotFoundError)):
            await inner.working_dir()
    finally:
        await inner.destroy()
        await inner.aclose()


async def test_a_stopped_environment_is_started_by_whoever_comes_back(workspace: CorralWorkspace) -> None:
    await workspace.write_bytes("/home/daytona/a.txt", b"kept")
    ref = workspace.ref
    await (await workspace.sandbox()).stop()
    again = CorralWorkspace(ref)
    try:
        assert await again.read_bytes("/home/daytona/a.txt") == b"kept"
        assert again.ref == ref
    finally:
        await again.destroy()
        await again.aclose()


async def test_an_environment_that_nobody_destroys_has_an_end() -> None:
    workspace = CorralWorkspace(lifetime_seconds=3600)
    try:
        info = await (await workspace.sandbox()).info()
        assert info.deadline is not None
        assert info.deadline <= 3600
    finally:
        await workspace.destroy()
        await workspace.aclose()


async def test_a_forgotten_workspace_lives_on_and_is_found_by_its_ref() -> None:
    workspace = CorralWorkspace()
    await workspace.write_bytes("/home/daytona/a.txt", b"kept")
    ref = workspace.ref
    del workspace
    gc.collect()
    again = CorralWorkspace(ref)
    assert await again.read_bytes("/home/daytona/a.txt") == b"kept"
    await again.destroy()
    with pytest.raises(WorkspaceUnavailableError):
        await again.working_dir()
    await again.destroy()
    await again.aclose()


async def test_nothing_is_made_by_destroying_nothing() -> None:
    workspace = CorralWorkspace()
    await workspace.destroy()
    await workspace.aclose()
    assert workspace.ref is None
