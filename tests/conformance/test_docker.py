"""The Docker backend keeps its promises, against a real daemon that is started for these tests."""

import asyncio
import ipaddress
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from corral.backends.docker import DockerBackend
from corral.errors import BackendUnavailableError, PortClosedError
from corral.image import Image
from corral.protocol import Backend
from corral.spec import make_spec
from corral.testing.checks.ports import fetch
from corral.testing.pytest import conformance_tests
from support.dockerd import Daemon, find_busybox, load_busybox, open_daemon
from support.tiers import further_backend

_ORDER = "the daemon reads both streams apart, and the order between them is lost there"
CANNOT = {
    "streams_are_apart_and_in_order": _ORDER,
    "on_output_gets_everything": _ORDER,
    "events_are_in_order": _ORDER,
    "session_commands_are_followed": _ORDER,
    "session_keeps_state": _ORDER,  # that it keeps its state, a test below shows
    "output_is_read_by_several": _ORDER,  # of one stream, the test below shows it
}

_daemons: list[Daemon] = []

pytestmark = [pytest.mark.check, pytest.mark.needs_docker, pytest.mark.timeout(240)]


@pytest.fixture(scope="module", autouse=True)
def for_the_suite(daemon: Daemon) -> Iterator[None]:
    """The suite makes its backends without asking for fixtures."""
    _daemons.append(daemon)
    yield
    _daemons.clear()


def make() -> DockerBackend:
    """A backend at the tests' daemon."""
    return DockerBackend(host=_daemons[0].host, image=_daemons[0].image)


def count(backend: Backend) -> int:
    """All containers of the daemon."""
    assert isinstance(backend, DockerBackend)
    return backend.count_living()


test_conformance = conformance_tests(make, cannot=CANNOT, count=count, marks=further_backend)


def make_without_python() -> DockerBackend:
    """With an image of busybox alone: files are handled by shell scripts."""
    return DockerBackend(host=_daemons[0].host, image=load_busybox(_daemons[0], str(find_busybox())))


test_conformance_without_python = conformance_tests(
    make_without_python,
    cannot={
        **CANNOT,
        "python": "the image has none",
        "transcript_is_run": "the image has no bash",
        "deep_tree_is_removed": "busybox's rm goes by paths, which the kernel limits to 4096 bytes",
    },
    count=count,
    marks=lambda item: [pytest.mark.backends, pytest.mark.needs_busybox],
)

OWNER = """
import asyncio, sys
from corral.backends.docker import DockerBackend
from corral.spec import make_spec

async def main():
    backend = DockerBackend(host=sys.argv[1], image=sys.argv[2])
    boxes = [await backend.create(make_spec()) for _ in range(2)]
    process = await boxes[0].start("sleep 1000")
    print("READY", flush=True)
    await process.wait()

asyncio.run(main())
"""


def test_containers_die_with_a_killed_owner(daemon: Daemon) -> None:
    before = daemon.count()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, daemon.host, daemon.image], stdout=subprocess.PIPE, text=True,
        env={**os.environ},
    )  # fmt: skip
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "READY\n"
        assert daemon.count() == before + 2
        owner.send_signal(signal.SIGKILL)
    finally:
        owner.kill()
        owner.wait()
        if owner.stdout is not None:
            owner.stdout.close()
    guard = time.monotonic() + 60
    while daemon.count() > before:
        assert time.monotonic() < guard, daemon.run("ps", "--all")
        time.sleep(0.1)


HALF_MADE = """
import asyncio, os, sys
from corral.backends.docker import DockerBackend
from corral.backends.docker.container import ContainerName
from corral.spec import make_spec

async def main():
    backend = DockerBackend(host=sys.argv[1], image=sys.argv[2])
    standing = ContainerName("00000000-0000-0000-0000-000000000000")
    work = backend._create_container(make_spec(), sys.argv[2], standing)
    await backend._links.get().io.arun(work)
    os._exit(9)

asyncio.run(main())
"""


def test_what_a_killed_process_left_half_made_is_swept(daemon: Daemon) -> None:
    before = daemon.count()
    done = subprocess.run([sys.executable, "-c", HALF_MADE, daemon.host, daemon.image], timeout=60)
    assert done.returncode == 9
    assert daemon.count() == before + 1

    async def use() -> int:
        backend = make()
        await backend.create(make_spec())
        left = daemon.count()
        await backend.aclose()
        return left

    assert asyncio.run(use()) == before + 1
    assert daemon.count() == before


def test_the_sandbox_is_strict(daemon: Daemon) -> None:
    async def look() -> tuple[str, str]:
        backend = make()
        box = await backend.create(make_spec())
        seen = await box.exec("cat /proc/self/status; ls /sys/class/net")
        told = daemon.run("inspect", box.primitives.container)
        await backend.aclose()
        return seen.stdout, told

    seen, told = asyncio.run(look())
    assert "CapEff:\t0000000000000000" in seen
    assert "CapBnd:\t0000000000000000" in seen
    assert "NoNewPrivs:\t1" in seen
    assert "Seccomp:\t2" in seen
    assert seen.rstrip().endswith("\nlo")
    assert '"Memory": 536870912' in told
    assert '"PidsLimit": 256' in told
    assert '"AutoRemove": true' in told


def test_output_of_one_stream_is_read_by_several(daemon: Daemon) -> None:
    async def use() -> list[bytes]:
        backend = make()
        box = await backend.create(make_spec())
        process = await box.start("echo first; cat; echo last")

        async def collect() -> bytes:
            return b"".join([chunk.data async for chunk in process.output()])

        readers = [asyncio.ensure_future(collect()) for _ in range(3)]
        await process.write("middle\n")
        await process.close_stdin()
        seen = [*await asyncio.gather(*readers), await collect()]
        await backend.aclose()
        return seen

    assert asyncio.run(use()) == [b"first\nmiddle\nlast\n"] * 4


def test_a_session_keeps_its_state(daemon: Daemon) -> None:
    async def use() -> tuple[bytes, int | None]:
        backend = make()
        box = await backend.create(make_spec())
        session = await box.open_session("work")
        await session.run("mkdir -p d; cd d; x=5; export Y=6; f() { echo f$1; }; sleep 1000 & echo started")
        command = await session.run("pwd; echo $x $(sh -c 'echo $Y'); f 7; kill -0 $! && echo alive; (exit 3)")
        logs = await session.logs(command.id)
        await session.delete()
        await backend.aclose()
        return logs.stdout, command.exit_code

    assert asyncio.run(use()) == (b"/home/daytona/d\n5 6\nf7\nalive\n", 3)


def test_what_the_daemon_has_not_got_is_said_with_a_remedy(daemon: Daemon) -> None:
    async def ask(backend: DockerBackend, **options: Any) -> str:
        try:
            with pytest.raises(BackendUnavailableError) as caught:
                await backend.create(make_spec(**options))
            return str(caught.value)
        finally:
            await backend.aclose()

    before = daemon.count()
    gvisor = DockerBackend(host=daemon.host, image=daemon.image, isolation="gvisor")
    assert "runsc install" in asyncio.run(ask(gvisor))
    unfetched = DockerBackend(host=daemon.host, image="registry.invalid/no-such:1")
    assert "docker pull" in asyncio.run(ask(unfetched))
    unasked = DockerBackend(host=daemon.host, pull=False)
    assert "no-such:2" in asyncio.run(ask(unasked, image="no-such:2"))
    assert daemon.count() == before


def test_a_recipe_is_built_once(daemon: Daemon) -> None:
    recipe = Image.base(daemon.image).env({"FROM_RECIPE": "yes"}).workdir("/srv/made")

    async def use() -> list[str]:
        backend = make()
        seen = []
        for _ in range(2):
            box = await backend.create(make_spec(image=recipe, workdir="/srv/made"))
            seen.append((await box.exec('echo "$FROM_RECIPE"; pwd')).stdout)
            await box.aclose()
        await backend.aclose()
        return seen

    def built() -> set[str]:
        return set(daemon.run("images", "--quiet", "corral-build").split())

    before = built()  # the daemon is shared: other tests may have built theirs
    assert asyncio.run(use()) == ["yes\n/srv/made\n"] * 2
    assert len(built() - before) == 1


def test_a_recipe_runs_commands_and_a_failure_is_told_and_leaves_nothing(daemon: Daemon) -> None:
    recipe = Image.base(daemon.image).env({"WORD": "it's $5"}).run("printf 'two\nlines: %s' \"$WORD\" > /tmp/made")

    async def use() -> tuple[str, str]:
        backend = make()
        box = await backend.create(make_spec(image=recipe))
        made = (await box.exec("cat /tmp/made")).stdout
        with pytest.raises(BackendUnavailableError) as caught:
            await backend.create(make_spec(image=recipe.run("echo this is why >&2; exit 3")))
        await backend.aclose()
        return made, str(caught.value)

    before = daemon.count()
    made, reason = asyncio.run(use())
    assert made == "two\nlines: it's $5"
    assert "code: 3" in reason
    assert "this is why" in reason
    assert daemon.count() == before


@pytest.mark.backends
@pytest.mark.needs_busybox
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_port_is_reached_without_python(daemon: Daemon, address: str) -> None:
    async def use() -> bytes | None:
        backend = make_without_python()
        box = await backend.create(make_spec())
        await box.files.write("index.html", b"made inside")
        url = await box.expose(8000)
        with pytest.raises(PortClosedError):
            await box.dial(8000)
        await box.start(["busybox", "httpd", "-f", "-p", f"{address}:8000"])
        while (got := await fetch(url)) is None:
            await asyncio.sleep(0.1)
        await backend.aclose()
        return got

    assert asyncio.run(use()) == b"made inside"


SILENT = """
import socket, time
server = socket.create_server(("127.0.0.1", 8000))
print("ready", flush=True)
kept = [server.accept()[0] for _ in range(2)]
kept[1].settimeout(2)
sent = 0
try:
    while True:
        sent += kept[1].send(bytes(65536))
except TimeoutError:
    print(sent, flush=True)
time.sleep(1000)
"""


def test_relay_ends_with_its_client_and_waits_for_it(daemon: Daemon) -> None:
    async def use() -> int:
        backend = make()
        box = await backend.create(make_spec())
        said = (await box.start(["python3", "-c", SILENT])).output()
        assert (await anext(said)).data == b"ready\n"
        (await box.dial(8000)).close()
        while (await box.exec("grep -l 'relay_por[t]' /proc/[0-9]*/cmdline")).stdout:
            await asyncio.sleep(0.1)
        with await box.dial(8000):  # which reads nothing
            sent = int((await anext(said)).data)
        await backend.aclose()
        return sent

    assert 0 < asyncio.run(use()) < 32 << 20


@pytest.mark.backends
@pytest.mark.needs_busybox
def test_busybox_alone_is_enough(daemon: Daemon) -> None:
    """An image without coreutils, bash, Python or any library."""

    async def use() -> None:
        backend = DockerBackend(host=daemon.host, image=load_busybox(daemon, str(find_busybox())))
        box = await backend.create(make_spec())
        assert (await box.exec("pwd; id -u; cat", stdin="typed")).stdout == "/home/daytona\n1000\ntyped"
        odd = "a b/don't\n-v\udcff"
        await box.files.write(odd, b"\0\xff\n" * 100_000)
        assert await box.files.read(odd) == b"\0\xff\n" * 100_000
        await box.files.write("text.txt", "one\ntwo\n")
        assert [match.line for match in (await box.files.grep("w.$")).matches] == [2]
        assert sorted((await box.files.glob("**/*.txt")).paths) == ["/home/daytona/text.txt"]
        await box.files.move("text.txt", "moved.txt")
        assert sorted(info.name for info in await box.files.list(".")) == ["a b", "moved.txt"]
        ended = await box.exec("sleep 1000 & sleep 1000", timeout=1)
        assert ended.reason == "timeout"
        assert "sleep 1000" not in (await box.exec("ps")).stdout
        kept = await box.exec("echo new > moved.txt; cat moved.txt 'a b'/*", read_only=["."], hidden=["a b"])
        assert kept.stdout == "one\ntwo\n"
        async with await box.start("stty size; read line; echo got $line", pty=True, rows=30, columns=99) as process:
            await process.write("typed\n")
            assert "30 99" in (await process.wait()).stdout
        refused = await (await box.start("if then\n" + "# padding\n" * 10_000)).wait()
        assert (refused.exit_code, "script.sh: line 1: syntax error" in refused.stderr) == (2, True)
        assert await box.files.list("/tmp") == []
        await backend.aclose()

    asyncio.run(use())


SERVER = """
import http.server, sys
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"hello")
server = http.server.HTTPServer((sys.argv[1], 0), Hello)
print(server.server_port, flush=True)
server.serve_forever()
"""

FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=20).read())"


@pytest.mark.backends
def test_an_open_network_leads_out_and_none_does_not() -> None:
    with open_daemon(bridge=True) as bridged:
        subnet = bridged.run("network", "inspect", "--format", "{{(index .IPAM.Config 0).Subnet}}", "bridge").strip()
        gateway = str(next(ipaddress.ip_network(subnet).hosts()))
        entered = ["nsenter", "--net", "--target", str(bridged.pid), sys.executable, "-c", SERVER, gateway]
        server = subprocess.Popen(entered, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert server.stdout is not None
            url = f"http://{gateway}:{int(server.stdout.readline())}/"

            async def fetch(network: str) -> tuple[int, str]:
                backend = DockerBackend(host=bridged.host, image=bridged.image)
                box = await backend.create(make_spec(network=network))
                result = await box.exec(["python3", "-c", FETCH, url])
                await backend.aclose()
                return result.exit_code, result.stdout

            assert asyncio.run(fetch("open")) == (0, "b'hello'\n")
            assert asyncio.run(fetch("none")) == (1, "")
        finally:
            server.kill()
            server.wait()
            if server.stdout is not None:
                server.stdout.close()
