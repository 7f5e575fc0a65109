"""A sandbox's window: who may come out through it, who serves it, and that nothing of it stays behind.

All of it on the test ground: what the gate takes for the network of the host leads nowhere.
"""

import sys
from typing import Any

import pytest

from support import ground
from support.user import OrdinaryUser

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux only")

# A program inside: what it gets from a host, and how a lookup or a connection fails.
TOOLS = """
from support.leftovers import list_descendants, wait_until
FETCH = '''
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) as sock:
        sock.sendall(b"GET /a HTTP/1.0\\\\r\\\\nHost: %s\\\\r\\\\n\\\\r\\\\n" % sys.argv[1].encode())
        print(sock.recv(4096).split(b"\\\\r\\\\n")[0].decode())
except socket.gaierror as error:
    print("no name" if error.errno == socket.EAI_NONAME else error)
except OSError as error:
    print(type(error).__name__, error.errno)
'''
def get(box, host, port=80):
    result = box.exec(["python3", "-c", FETCH, host, str(port)], timeout=60)
    return [result.stdout.strip() or result.stderr, [[each.host, each.port, each.rule] for each in result.denied]]
def gates(ancestor=None):
    return [pid for pid, name in list_descendants(ancestor or os.getpid()).items() if name == "corral-gate"]
def status(pid):
    lines = open(f"/proc/{pid}/status").read().splitlines()
    return {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
"""


def run(program: str, user: OrdinaryUser | None) -> dict[str, Any]:
    return ground.run(TOOLS + program, user=user)


EVERYBODY = pytest.mark.parametrize(
    "who",
    [
        pytest.param("root", marks=pytest.mark.needs_root),
        pytest.param("user", marks=[pytest.mark.needs_user, pytest.mark.needs_userns]),
    ],
)


@pytest.fixture
def user(who: str, request: pytest.FixtureRequest) -> OrdinaryUser | None:
    """None for root."""
    if who == "root":
        return None
    found: OrdinaryUser = request.getfixturevalue("ordinary_user")
    return found


@EVERYBODY
def test_without_a_network_nothing_is_reached_and_everything_fails_at_once(user: OrdinaryUser | None) -> None:
    told = run(
        """
serve(count, "93.184.215.14", 80, name="example.org")
with Sandbox() as box:
    tell(before=gates(), name=get(box, "example.org"), address=get(box, "93.184.215.14"), six=get(box, "2a00::1"))
    tell(routes=box.exec("cat /proc/net/route").stdout.splitlines()[1:], listening=box.exec("cat /proc/net/tcp").stdout)
    tell(again=box.exec("true").denied, running=len(gates()))
    retries = box.exec("echo $PIP_RETRIES $npm_config_fetch_retries").stdout.split()
tell(retries=retries, after=wait_until(lambda: not gates()))
""",
        user,
    )
    assert told["before"] == []
    assert told["name"] == ["no name", [["example.org", None, "no network"]]]
    assert told["address"] == ["OSError 101", []]
    assert told["six"] in (["OSError 101", []], ["OSError 99", []])
    assert told["routes"] == []
    assert len(told["listening"].splitlines()) == 1
    assert told["again"] == []
    assert told["running"] == 1
    assert told["retries"] == ["0", "0"]
    assert told["after"]


@EVERYBODY
def test_what_is_not_listed_is_refused_and_told(user: OrdinaryUser | None) -> None:
    told = run(
        """
unlisted = serve(count, "93.184.215.15", 80, name="example.com")
private = serve(count, "10.0.0.7", 22)
six = serve(count, "2a00:1450::1", 443)
with Sandbox(network=["example.org"]) as box:
    tell(before=gates())
    tell(name=get(box, "example.com"), address=get(box, "10.0.0.7", 22), six=get(box, "2a00:1450::1", 443))
    (gate,) = gates()
    is_of = status(gate)
    tell(uids=is_of["Uid"], capabilities=is_of["CapEff"] + is_of["CapPrm"], gain=is_of["NoNewPrivs"])
    tell(ours=os.geteuid(), dumpable=os.stat(f"/proc/{gate}/mem").st_uid)
tell(reached=[unlisted.connections, private.connections, six.connections])
""",
        user,
    )
    assert told["before"] == []
    assert told["name"] == ["no name", [["example.com", None, "policy"]]]
    assert told["address"][1] == [["10.0.0.7", 22, "policy"]]
    assert told["six"][1] == [["2a00:1450::1", 443, "policy"]]
    assert told["reached"] == [0, 0, 0]
    assert told["capabilities"] == ["0" * 16, "0" * 16]
    assert told["gain"] == ["1"]
    assert told["dumpable"] == 0 if user is None else told["dumpable"] != user.uid
    if user is None:
        assert len(set(told["uids"])) == 1
        assert int(told["uids"][0]) > 0x7FFF_0000
