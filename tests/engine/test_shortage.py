"""This process, or its user, runs out of a resource: Corral continues if it can, and otherwise names the resource."""

import contextlib
import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral import AsyncSandbox, HostExhaustedError
from support.user import OrdinaryUser

pytestmark = pytest.mark.needs_userns

OPEN = Path("/proc/self/fd")

# A sandbox fills the user's allowance of descriptors in flight, up to its own limit, which is far above ours.
FLOOD = """
import os, resource, socket, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
pairs, descriptor = [], os.open("/dev/null", os.O_RDONLY)
try:
    while True:
        pairs.append(socket.socketpair())
        socket.send_fds(pairs[-1][0], [b"x"], [descriptor] * 250)
except OSError as error:
    print(error.strerror, flush=True)
time.sleep(60)
"""
PROGRAM = f"""
import asyncio, json, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 4096))
from corral import AsyncSandbox, Resources

async def main():
    roomy = Resources(open_files=4096)
    async with AsyncSandbox(resources=roomy) as one, AsyncSandbox(resources=roomy) as two:
        flood = await one.start(["python3", "-c", {FLOOD!r}])
        async for chunk in flood.output():
            break
        said = (await two.exec(["echo", "works"])).stdout
        await two.files.write("a", "b")
        read = (await two.files.read("a")).decode()
        result = await flood.wait()
        again = (await one.exec(["echo", "works"])).stdout
    print(json.dumps([said, read, result.limit, again]))

asyncio.run(main())
"""


@pytest.mark.needs_user
def test_descriptors_in_flight_of_one_sandbox_do_not_stop_the_others_of_its_user(ordinary_user: OrdinaryUser) -> None:
    done = ordinary_user.run(PROGRAM, env={"CORRAL_DATA_DIR": str(ordinary_user.home / "data")})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["works\n", "b", "descriptors", "works\n"]


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """This process may open but few more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(path.name) for path in OPEN.iterdir()) + 50, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def take_all_descriptors() -> list[int]:
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.dup(0))
    return taken


async def test_no_descriptors_left_is_said_and_does_not_end_the_sandbox(few_descriptors: None) -> None:
    async with AsyncSandbox() as box:
        await box.files.write("a", "b")
        taken = take_all_descriptors()
        with pytest.raises(HostExhaustedError, match="no file descriptors left") as raised:
            await box.exec(["true"])
        assert "ulimit -n" in raised.value.hint
        with pytest.raises(HostExhaustedError):
            await box.files.read("a")
        for descriptor in taken:
            os.close(descriptor)
        assert (await box.exec(["echo", "works"])).stdout == "works\n"
        assert await box.files.read("a") == b"b"
