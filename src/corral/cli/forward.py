"""`corral sandbox forward`: ports of a sandbox on this machine."""

from __future__ import annotations

import asyncio
import re

import click

from corral.cli import options
from corral.cli.display import plain
from corral.cli.owner import connected, run_on
from corral.cli.run import note
from corral.client.sandbox import AsyncSandbox
from corral.errors import CapabilityError, gone
from corral.protocol import Backend, lacking

_POLL_SECONDS = 2.0


class PortPair(click.ParamType):  # type: ignore[type-arg] # generic only since click 8.4, and 8.1 will do
    """A port of the sandbox, and perhaps one of this machine: 8000 or 8000:9000."""

    name = "port"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int | None]:
        """Parse it, exactly: no signs, no zeros in front."""
        match = re.fullmatch(r"([1-9][0-9]{0,4})(?::([1-9][0-9]{0,4}))?", str(value), re.ASCII)
        ports = [int(each) if each else None for each in match.groups()] if match else []
        if not ports or any(each is not None and each > 65535 for each in ports):
            self.fail(f"{value!r} is not a port; write 8000, or 8000:9000 for port 9000 of this machine", param, ctx)
        inside, local = ports
        assert inside is not None
        return inside, local


@click.command()
@options.sandbox_argument
@click.argument("ports", nargs=-1, required=True, type=PortPair(), metavar="PORT[:LOCAL]…")
@click.option("--address", metavar="ADDRESS",
              help="Listen on this address, for everybody who reaches it. By default, a loopback address that is only "
                   "used for this port, for programs of your user.")  # fmt: skip
@options.backend_option
def forward(
    sandbox_id: str, ports: tuple[tuple[int, int | None], ...], address: str | None, backend: str | Backend
) -> None:
    """Reach ports of a sandbox from this machine, until Ctrl-C. The servers inside may be started later.

    \b
    corral sandbox forward box 8000               prints a URL for port 8000 of the sandbox
    corral sandbox forward box 8000:9000 5432
    """

    async def work(maker: Backend) -> None:
        async with connected(maker, sandbox_id) as box:
            own_urls = box.primitives.exposes == "url"
            if own_urls and (address is not None or any(local is not None for _, local in ports)):
                hint = "give the ports alone: the server makes the URLs"
                raise lacking(maker.name, "--address and ports of this machine", sandbox_id=box.id, hint=hint)
            for inside, local in ports:
                url = await box.expose(inside, local_port=local, address=address)
                click.echo(f"{url} -> {plain(sandbox_id)}:{inside}")
            note("press Ctrl-C to end")
            await _wait_for_end(box)
            raise gone(box.id, op="forward")

    run_on(backend, sandbox_id, work)


async def _wait_for_end(box: AsyncSandbox) -> None:
    try:
        await box.wait_until_gone()
    except CapabilityError:
        while await box.is_alive():  # noqa: ASYNC110 - such a backend can only be asked
            await asyncio.sleep(_POLL_SECONDS)
