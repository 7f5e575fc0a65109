"""`corral serve`: the server, on this machine."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import corral
from corral.cli.display import paint
from corral.cli.failure import ERROR, Failed
from corral.cli.options import backend_option, setting_option
from corral.errors import BackendUnavailableError

if TYPE_CHECKING:
    from corral.server.app import Server
    from corral.server.settings import ServerSettings

FIRST_ORGANISATION = "default"


def need_server() -> None:
    """Raises: BackendUnavailableError, if what the server stands on is not installed."""
    for package in ("aiohttp", "msgspec"):
        if importlib.util.find_spec(package) is None:
            raise BackendUnavailableError(
                f"the server is not installed: {package} is missing", hint="pip install 'corral[server]'"
            )


def data_folder(given: Path | None) -> Path:
    """Where server and engine keep their data; both look there from now on."""
    if given is not None:
        os.environ["CORRAL_DATA_DIR"] = str(given.expanduser().absolute())
    from corral.backends.embedded.settings import default_data_folder

    return default_data_folder()


data_option = setting_option(
    "data_dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where sandboxes and the server's database are; the same as `corral --data-dir`.",
)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option("--port", default=3986, show_default=True, type=click.IntRange(0, 65535), help="0 takes any free one.")
@data_option
@backend_option
@click.option("--public-url", metavar="URL", help="How clients reach the server, if not by the address it listens on.")
@click.option("--allowed-host", "allowed_hosts", multiple=True, metavar="NAME", help="Another name to answer for.")
@click.option(
    "--tls-cert", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="PEM, with its chain."
)
@click.option("--tls-key", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="PEM.")
@click.option("--insecure", is_flag=True, help="Listen beyond this machine without TLS.")
@click.option("--keep", is_flag=True, help="At Ctrl-C leave the sandboxes running, without asking.")
def serve(data_dir: Path | None, keep: bool, **given: Any) -> None:
    """Serve sandboxes to Daytona's SDKs.

    \b
    corral serve                            on 127.0.0.1:3986, for this machine
    export DAYTONA_API_URL=http://127.0.0.1:3986/api DAYTONA_API_KEY=…

    The first start prints a key, once; CORRAL_API_KEY chooses it. `corral key` makes more. SIGTERM leaves sandboxes
    running, and the next start finds them.
    """
    need_server()
    from corral.server import log
    from corral.server.settings import ServerSettings

    settings = ServerSettings(
        data_folder=data_folder(data_dir),
        version=corral.__version__,
        allowed_hosts=frozenset(given.pop("allowed_hosts")),
        **given,
    )
    # On a terminal the counts say how it goes, and lines of JSON would only be in their way.
    quiet = sys.stdout.isatty() and sys.stderr.isatty() and not os.environ.get("CORRAL_DEBUG")
    log.set_up(level=logging.WARNING if quiet else logging.INFO)
    try:
        asyncio.run(_serve(settings, keep=keep))
    except OSError as error:
        raise Failed(error, exit_code=ERROR) from error


async def _serve(settings: ServerSettings, *, keep: bool) -> None:
    from corral.backends.registry import get_backend
    from corral.server.app import opened
    from corral.server.serving import listening

    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()

    def end(number: int) -> None:
        if not stop.done():
            stop.set_result(number)

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, end, each)
    backend = get_backend(settings.backend)
    async with opened(settings, backend=backend) as server:
        first = _first_key(server)
        async with listening(server) as url:
            await _introduce(server, first)
            print(f"listening on {url}", flush=True)
            counting = asyncio.create_task(_count(server)) if sys.stdout.isatty() else None
            number = await stop
            if counting is not None:
                counting.cancel()
                print(flush=True)
        if number == signal.SIGINT and not keep and list(server.roster) and await _shall_end(server):
            _say("ended", f"{await server.warden.end_all()} sandboxes")


async def _introduce(server: Server, first: str | None) -> None:
    capabilities = await server.backend.capabilities()
    _say("backend", f"{server.backend.name}: {capabilities.isolation}")
    _say("limits", f"memory {capabilities.memory}, cpu {capabilities.cpu}, disk {capabilities.disk}")
    for note in capabilities.notes:
        _say("", note)
    _say("data", str(server.settings.data_folder))
    if list(server.roster):
        _say("sandboxes", _states(server))
    if first is not None:
        _say("key", f"{first}   (shown this once)")


async def _count(server: Server) -> None:
    """On a terminal: one line that says how things are."""
    shown = ""
    while True:
        states = _states(server) or "no sandboxes"
        text = f"{states} · {server.metrics.in_flight} requests · {len(server.events)} listeners"
        if text != shown:
            shown = text
            sys.stdout.write(f"\r\x1b[K{text}")
            sys.stdout.flush()
        await asyncio.sleep(0.5)


def _states(server: Server) -> str:
    return ", ".join(f"{number} {state}" for state, number in sorted(server.roster.states().items()))


def _first_key(server: Server) -> str | None:
    """At the first start there is no key; then one is made, and shown unless it was chosen."""
    if server.keyring.keys:
        return None
    chosen = os.environ.get("CORRAL_API_KEY")
    organisation = server.keyring.organisation_named(FIRST_ORGANISATION)
    _, secret = server.keyring.create(organisation=organisation, name="first", secret=chosen or None)
    return None if chosen else str(secret)


async def _shall_end(server: Server) -> bool:
    """At a terminal we ask; nobody there to answer means that they end with us."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    question = f"end {len(list(server.roster))} sandboxes? [y/N] "
    try:
        answer = await asyncio.to_thread(input, question)
    except (EOFError, KeyboardInterrupt):
        return False
    return answer.strip().lower() in ("y", "yes")


def _say(name: str, text: str) -> None:
    print(f"{paint(f'{name:>10}', 'cyan', stream=sys.stdout)}  {text}", flush=True)
