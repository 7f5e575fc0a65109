"""`corral serve`: the server, on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import importlib.util
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import corral
from corral.cli.board import Board, ask, states
from corral.cli.display import Progress
from corral.cli.failure import ERROR, Failed
from corral.cli.options import backend_option, ceiling_option, complete_file, setting_option
from corral.errors import BackendUnavailableError
from corral.spec import Spec

if TYPE_CHECKING:
    from corral.server.app import Server
    from corral.server.settings import ServerSettings

FIRST_ORGANISATION = "default"
KEY_FILE = "first-key"
"""In the server's own folder."""
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""The numbers of these settings in glibc's malloc.h."""
_LARGE_BLOCK_BYTES = 1024 * 1024


def need_server() -> None:
    """Raises: BackendUnavailableError, if the server's dependencies are not installed."""
    for package in ("aiohttp", "msgspec"):
        if importlib.util.find_spec(package) is None:
            raise BackendUnavailableError(
                f"the server needs more packages: {package} is missing", hint="pip install 'corral[server]'"
            )


def data_folder(given: Path | None) -> Path:
    """The data folder; `given` is set as that of the server and of the engine."""
    if given is not None:
        os.environ["CORRAL_DATA_DIR"] = str(given.expanduser().absolute())
    from corral.backends.embedded.settings import default_data_folder

    return default_data_folder()


data_option = setting_option(
    "data_dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The folder of sandboxes and of the server's database; the same as `corral --data-dir`.",
)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The address to listen on.")
@click.option("--port", default=3986, show_default=True, type=click.IntRange(0, 65535), help="0 takes any free port.")
@data_option
@backend_option
@click.option("--public-url", metavar="URL", help="The URL that clients use, if it differs from the listening address.")
@click.option("--preview-domain", metavar="NAME",
              help="Previews of ports are at {port}-{sandbox}.NAME, which must lead to this server.")  # fmt: skip
@click.option("--allowed-host", "allowed_hosts", multiple=True, metavar="NAME", help="Another accepted Host name.")
@click.option(
    "--tls-cert", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Certificate chain, as PEM."
)
@click.option("--tls-key", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Private key, as PEM.")
@click.option("--insecure", is_flag=True, help="Listen beyond this machine without TLS.")
@click.option("--key-memory", default="40MiB", show_default=True, metavar="SIZE",
              help="Limit on the server memory held by all requests of one API key.")  # fmt: skip
@click.option("--volume-size", default="10GiB", show_default=True, metavar="SIZE",
              help="The size of each volume. As an ordinary user, volumes have no limit of their own.")  # fmt: skip
@click.option(
    "--package",
    "-p",
    "packages",
    multiple=True,
    metavar="NAME",
    help="A Python package, as for pip, for every sandbox; resolved at the start, mounted read-only.",
)
@setting_option(
    "venv",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    shell_complete=complete_file,
    help="A virtual environment of this machine for every sandbox, mounted read-only.",
)
@ceiling_option(
    "What sandboxes may reach: none (default), packages, open, or hosts such as a.org,*.b.org:443. Clients can ask for "
    "less; keys may permit more (`corral key create --network`)."
)
@click.option("--keep", is_flag=True, help="On Ctrl-C, leave the sandboxes running without asking.")
def serve(
    data_dir: Path | None, key_memory: str, volume_size: str, keep: bool, ceiling: str | None, **given: Any
) -> None:
    """Serve sandboxes to Daytona's SDKs.

    \b
    corral serve                            on 127.0.0.1:3986, for this machine
    corral serve -p numpy -p 'pandas>=2'    with packages in every sandbox
    export DAYTONA_API_URL=http://127.0.0.1:3986/api DAYTONA_API_KEY=…

    The first start creates an API key, or takes the one in CORRAL_API_KEY. On a terminal the key is printed once;
    otherwise it is written to a file, to keep it out of logs. `corral key` creates more. SIGTERM leaves sandboxes
    running, and the next start finds them.
    """
    need_server()
    from corral.server import log
    from corral.server.settings import Defaults, ServerLimits, ServerSettings
    from corral.spec import NetworkPolicy, parse_size

    settings = ServerSettings(
        limits=ServerLimits(memory_per_key_bytes=parse_size(key_memory, what="--key-memory")),
        defaults=Defaults(
            volume_bytes=parse_size(volume_size, what="--volume-size"),
            packages=given.pop("packages"),
            venv=given.pop("venv"),
        ),
        data_folder=data_folder(data_dir),
        version=corral.__version__,
        allowed_hosts=frozenset(given.pop("allowed_hosts")),
        network=NetworkPolicy.parse(ceiling),
        **given,
    )
    board = Board()
    # On a terminal the live line shows the state, and lines of JSON would disturb it.
    quiet = sys.stdout.isatty() and sys.stderr.isatty() and not os.environ.get("CORRAL_DEBUG")
    log.set_up(level=logging.WARNING if quiet else logging.INFO, before=board.clear if sys.stdout.isatty() else None)
    _keep_heap_small()
    try:
        asyncio.run(_serve(settings, board=board, keep=keep))
    except OSError as error:
        raise Failed(_explain(error, settings), exit_code=ERROR) from error


def _keep_heap_small() -> None:
    """Configure glibc's malloc to reuse freed memory or return it to the kernel.

    Output is read in one thread and freed in another: with a heap for each thread, what one frees is not reused by the
    next. And once a large block was freed, glibc puts blocks of that size on the heap, where they leave gaps. Both
    together made the process grow by up to a third more than it holds.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)


def _explain(error: OSError, settings: ServerSettings) -> Exception:
    if error.errno == errno.EADDRINUSE:
        text = f"port {settings.port} of {settings.host} is in use"
        return BackendUnavailableError(text, hint="choose another --port, or 0 for any free one")
    return error


class Signals:
    """Signals that stop the server. The first starts a graceful shutdown, the next one hurries it."""

    def __init__(self) -> None:
        self.came = asyncio.Event()
        self.again = asyncio.Event()
        self.number = 0
        self.is_draining = False
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(each) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                loop.add_signal_handler(each, self._hear, each)

    def _hear(self, number: int) -> None:
        if not self.came.is_set():
            self.number = number
            self.came.set()
        elif self.is_draining:
            os._exit(128 + number)  # safe: the server survives a kill -9
        else:
            self.again.set()


async def _serve(settings: ServerSettings, *, board: Board, keep: bool) -> None:
    from corral.client.registry import get_backend
    from corral.server.beginning import Beginning

    signals = Signals()
    beginning = Beginning(settings, get_backend(settings.backend))
    await asyncio.sleep(0)  # it continues while the rest is imported
    from corral.server.app import opened
    from corral.server.serving import listening

    async with opened(settings, beginning=beginning) as server:
        await _prepare(server)
        async with listening(server) as url:
            # Not before the server listens: a key that was not shown would be lost.
            await board.introduce(server, url=url, key=(key := _first_key(server)), key_file=_keep_key(server, key))
            board.put(f"listening on {url}")
            await _work(server, board, signals)
        signals.is_draining = False
        if server.lost.is_set():
            raise BackendUnavailableError(
                "the data folder was moved or deleted while the server was running",
                hint="its sandboxes are in the moved folder; restart with --data-dir",
            )
        await _leave_sandboxes(server, board, signals, keep=keep)


async def _prepare(server: Server) -> None:
    """Get what every sandbox is to have, before anybody asks for one. Raises: as `Backend.create`."""
    defaults = server.settings.defaults
    if not defaults.packages and defaults.venv is None:
        return
    # With the server's network: an index may lead to hosts that only it permits.
    spec = Spec(packages=defaults.packages, venv=defaults.venv, network=server.settings.network)
    with Progress() as progress:
        box = await server.backend.create(spec, on_event=progress.take)
    await box.aclose()


async def _work(server: Server, board: Board, signals: Signals) -> None:
    """Serve until a signal comes or the data folder is lost."""
    counting = asyncio.create_task(board.keep_count(server)) if sys.stdout.isatty() else None
    waiting = [asyncio.ensure_future(event.wait()) for event in (signals.came, server.lost)]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*waiting, *((counting,) if counting is not None else ())):
            task.cancel()
        signals.is_draining = True
    if counting is not None:
        board.put("")
        if server.metrics.in_flight:
            board.say("stopping", f"{server.metrics.in_flight} requests in progress; Ctrl-C again stops now")


async def _leave_sandboxes(server: Server, board: Board, signals: Signals, *, keep: bool) -> None:
    """Delete the sandboxes after a Ctrl-C, unless the user at a terminal says no; else leave them running."""
    count = len(list(server.sandboxes))
    if not count:
        return
    deleting = signals.number == signal.SIGINT and not keep
    if deleting and sys.stdin.isatty() and sys.stderr.isatty():
        deleting = await ask(board, f"end {count} sandboxes?", interrupted=signals.again)
    if deleting:
        board.say("ended", f"{await server.lifecycle.end_all()} sandboxes")
    elif sys.stdout.isatty():
        board.say("left", f"{states(server)}; the next `corral serve` finds them")


def _first_key(server: Server) -> str | None:
    """The key to show: one is created at the first start; None if there are keys, or if the user chose it."""
    if server.keyring.keys:
        return None
    chosen = os.environ.get("CORRAL_API_KEY")
    organisation = server.keyring.organisation_named(FIRST_ORGANISATION)
    _, secret = server.keyring.create(organisation=organisation, name="first", secret=chosen or None)
    return None if chosen else str(secret)


def _keep_key(server: Server, key: str | None) -> Path | None:
    """The private file with the key, if the output is no terminal and may go to a log."""
    if key is None or sys.stdout.isatty():
        return None
    path = server.settings.state_folder / KEY_FILE
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{key}\n")
    return path
