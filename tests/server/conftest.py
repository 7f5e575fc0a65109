"""A server for tests: as a real process with the real SDK, or in this process where a test must reach inside."""

import contextlib
import queue
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from daytona import AsyncDaytona, Daytona, DaytonaConfig, Sandbox
from httpx_ws import WebSocketSession

from corral.backends.memory.backend import MemoryBackend
from corral.server.app import Server, opened
from corral.server.serving import listening
from corral.server.settings import ServerLimits, ServerSettings
from support.serving import ServedProcess, make_client, served


class _LateError(TimeoutError, queue.Empty):
    """As both are called that wait for a message."""


@pytest.fixture(autouse=True)
def patient_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sync client wait ten seconds for a terminal, as it means to.

    It gives up after the first tenth of a second, since its websocket library does not raise the error that it expects.
    On a busy machine it is luck whether the client's own thread has read the answer by then.
    """
    receive = WebSocketSession.receive

    def receive_in_time(session: WebSocketSession, timeout: float | None = None) -> object:
        try:
            return receive(session, timeout)
        except queue.Empty as error:
            raise _LateError from error

    monkeypatch.setattr(WebSocketSession, "receive", receive_in_time)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServedProcess]:
    """One that a test may kill."""
    with served(tmp_path / "data") as running:
        yield running


@pytest.fixture(scope="session")
def daytona(server: ServedProcess) -> Daytona:
    """The official client."""
    return make_client(server)


@pytest.fixture
async def async_daytona(server: ServedProcess) -> AsyncIterator[AsyncDaytona]:
    """The official client, async."""
    async with AsyncDaytona(DaytonaConfig(api_url=server.url, api_key=server.key)) as client:
        yield client


@pytest.fixture
def sandbox(daytona: Daytona) -> Iterator[Sandbox]:
    """A sandbox through the SDK."""
    box = daytona.create()
    yield box
    with contextlib.suppress(Exception):
        daytona.delete(box)


@dataclass(frozen=True, slots=True)
class InProcess:
    """A server in this process."""

    server: Server
    url: str
    key: str
    """Of the organisation `default`, for everything."""
    session: aiohttp.ClientSession

    def new_key(self, organisation: str, **options: object) -> str:
        """Another key."""
        row = self.server.keyring.organisation_named(organisation)
        return self.server.keyring.create(organisation=row, name=secrets.token_hex(4), **options)[1]  # type: ignore[arg-type]

    def headers(self, key: str | None = None) -> dict[str, str]:
        """For a request with a key."""
        return {"Authorization": f"Bearer {key or self.key}"}


OpenInProcess = Callable[..., contextlib.AbstractAsyncContextManager[InProcess]]


@pytest.fixture
def open_in_process(tmp_path: Path) -> OpenInProcess:
    """Opens servers in this process, on the backend that executes nothing."""

    @contextlib.asynccontextmanager
    async def open_one(limits: ServerLimits | None = None, **options: object) -> AsyncIterator[InProcess]:
        settings = ServerSettings(
            data_folder=tmp_path / "data",
            port=0,
            backend="memory",
            limits=limits or ServerLimits(),
            **options,  # type: ignore[arg-type]
        )
        async with opened(settings, backend=MemoryBackend()) as made, listening(made) as url:
            organisation = made.keyring.organisation_named("default")
            _, key = made.keyring.create(organisation=organisation, name="first")
            async with aiohttp.ClientSession() as session:
                yield InProcess(server=made, url=url, key=key, session=session)

    return open_one


@pytest.fixture
async def in_process(open_in_process: OpenInProcess) -> AsyncIterator[InProcess]:
    """One such server."""
    async with open_in_process() as running:
        yield running
