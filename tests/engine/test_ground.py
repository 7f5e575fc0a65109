"""The test ground itself: what other tests rely on."""

import os
import socket
import sys

import pytest

from corral.testing.ground import Ground
from support import ground
from support.user import OrdinaryUser

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux only")

# Where an assertion of this program could be wrong about itself, the kernel's own lists are asked.
PROGRAM = """
web_server = serve(web, "93.184.215.14", 80, name="example.org")
metadata = serve(count, "169.254.169.254", 80)
six = serve(banner, "2a00:1450::1", 25)
tell(
    interfaces=sorted(name for _, name in socket.if_nameindex()),
    proxies=[name for name in os.environ if name.lower().endswith("_proxy") or name.startswith("PIP_")],
    page=fetch("example.org", 80, b"GET /a HTTP/1.0\\r\\n\\r\\n").decode(),
    banner=fetch("2a00:1450::1", 25, b"", seconds=0.2).decode(),
)
socket.create_connection(("169.254.169.254", 80)).close()
while not metadata.connections: time.sleep(0.01)
def answer(name, kind):
    return Answer(("10.1.2.3",), ttl=1) if name == "scripted.test" else None
with GROUND.answer_names(answer) as names:
    found = socket.getaddrinfo("scripted.test", 80, type=socket.SOCK_STREAM)
    try:
        socket.getaddrinfo("other.test", 80)
    except socket.gaierror as error:
        tell(unknown=error.errno == socket.EAI_NONAME)
    tell(resolved=[row[4][0] for row in found], asked=sorted(set(names.asked)))
for host in ("192.0.2.1", "2001:db8::1"):
    try:
        fetch(host, 80, seconds=0.2)
    except OSError as error:
        tell(**{host: type(error).__name__})
with Sandbox() as box:
    tell(uid=os.geteuid(), inside=box.exec("cat /proc/net/dev | tail -n +3 | cut -d: -f1").stdout.strip())
"""


def judge(answer: dict[str, object], uid: int) -> None:
    assert answer["interfaces"] == ["lo", "out"]
    assert answer["proxies"] == []
    assert '"path": "/a"' in str(answer["page"])
    assert answer["banner"] == "220 ready\r\n"
    assert answer["resolved"] == ["10.1.2.3"]
    assert ["other.test", "A"] in answer["asked"]  # type: ignore[operator]
    assert answer["unknown"]
    assert answer["192.0.2.1"]
    assert answer["2001:db8::1"]
    assert (answer["uid"], answer["inside"]) == (uid, "lo")


@pytest.mark.needs_root
def test_ground_of_root() -> None:
    judge(ground.run(PROGRAM, env={"HTTPS_PROXY": "http://192.0.2.9:1", "PIP_INDEX_URL": "http://192.0.2.9"}), 0)


@pytest.mark.needs_user
@pytest.mark.needs_userns
def test_ground_of_an_ordinary_user(ordinary_user: OrdinaryUser) -> None:
    judge(ground.run(PROGRAM, user=ordinary_user), ordinary_user.uid)


@pytest.mark.needs_user
@pytest.mark.needs_userns
def test_an_ordinary_user_can_make_one(ordinary_user: OrdinaryUser) -> None:
    """As `corral doctor --prove` does."""
    text = "from corral import Sandbox\nfrom corral.testing.ground import Ground\nground = Ground()\n"
    text += "with Sandbox() as box: print(box.exec('echo inside').stdout)"
    argv = [str(ordinary_user.python), "-m", "corral.testing.ground", str(ordinary_user.python), "-c", text]
    done = ordinary_user.run_argv(argv, env={"CORRAL_DATA_DIR": str(ordinary_user.home / "data")})
    assert done.stdout.strip() == "inside", done.stderr


def test_elsewhere_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CORRAL_GROUND_SOCKET", raising=False)
    with pytest.raises(RuntimeError, match="not on a test ground"):
        Ground()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setenv("CORRAL_GROUND_SOCKET", str(ours.fileno()))
        monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo")])
        with pytest.raises(RuntimeError, match="hosts file"):
            Ground()
        assert os.fstat(ours.fileno())
