"""A sandbox's window: who may come out through it, who serves it, and that nothing of it stays behind.

All of it on the test ground: what the gate takes for the network of the host leads nowhere.
"""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from support import ground
from support.user import ROOT, OrdinaryUser

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
    assert told["address"][1] == [["10.0.0.7", 22, "private"]]
    assert told["six"][1] == [["2a00:1450::1", 443, "policy"]]
    assert told["reached"] == [0, 0, 0]
    assert told["capabilities"] == ["0" * 16, "0" * 16]
    assert told["gain"] == ["1"]
    assert told["dumpable"] == 0 if user is None else told["dumpable"] != user.uid
    if user is None:
        assert len(set(told["uids"])) == 1
        assert int(told["uids"][0]) > 0x7FFF_0000


@EVERYBODY
def test_a_program_that_ends_before_it_is_refused_has_that_in_its_result(user: OrdinaryUser | None) -> None:
    """The kernel takes the connection at once, and nobody has looked at it yet: the gate is only starting."""
    told = run(
        """
CONNECT = "import socket; socket.create_connection(('10.0.0.7', 22)).close()"
def denied(run):
    with Sandbox(network=["example.org"]) as box:
        told = [[str(each), each.count] for each in (*run(box).denied, *run(box).denied)]
        box.kill()
        return told
def detached(box):
    box.detach()
    return box.exec(["python3", "-c", CONNECT])
tell(
    exec=denied(lambda box: box.exec(["python3", "-c", CONNECT])),
    code=denied(lambda box: box.run_code(CONNECT)),
    started=denied(lambda box: box.start(["python3", "-c", CONNECT]).wait()),
    session=denied(lambda box: box.open_session(str(time.time())).run(f'python3 -c "{CONNECT}"')),
    context=denied(lambda box: box.interpreter.execute(CONNECT)),
    detached=denied(detached),
)
with Sandbox() as box:
    box.set_network(["example.org"])
    tell(later=[str(each) for each in box.exec(["python3", "-c", CONNECT]).denied])
""",
        user,
    )
    later = told.pop("later")
    assert told == {
        way: [["10.0.0.7:22", 1], ["10.0.0.7:22", 1]]
        for way in ("exec", "code", "started", "session", "context", "detached")
    }
    assert later == ["10.0.0.7:22"]


@EVERYBODY
def test_the_sandbox_finds_itself_by_name_and_that_is_no_attempt(user: OrdinaryUser | None) -> None:
    told = run(
        """
LOOK = '''
import socket
for name in ("corral", "localhost", "app.localhost"):
    for family in (socket.AF_INET, socket.AF_INET6):
        try: print(name, socket.getaddrinfo(name, 80, family, socket.SOCK_STREAM)[0][4][0])
        except OSError as error: print(name, error.errno == socket.EAI_NODATA)
'''
for name, network in {"none": "none", "listed": ["example.org"]}.items():
    with Sandbox(network=network, hostname="corral") as box:
        box.exec("getent hosts corral; hostname -f")
        result = box.run_code(LOOK)
        tell(**{name: [result.stdout.splitlines(), list(map(str, box.denials()))]})
""",
        user,
    )
    found = [
        "corral 127.0.0.1", "corral True",
        "localhost 127.0.0.1", "localhost ::1",
        "app.localhost 127.0.0.1", "app.localhost True",
    ]  # fmt: skip
    assert told == {"none": [found, []], "listed": [found, []]}


@EVERYBODY
def test_what_is_listed_is_reached_with_no_settings_inside(user: OrdinaryUser | None) -> None:
    told = run(
        """
served = serve(web, "93.184.215.14", 80, name="example.org")
private = serve(web, "10.0.0.7", 8080)
loopback = serve(web, "93.184.215.15", 80, name="example.com")
with Sandbox(network=["example.org:80", "10.0.0.7"]) as box:
    tell(name=get(box, "example.org"), address=get(box, "10.0.0.7", 8080))
    tell(other=get(box, "example.com"), port=get(box, "example.org", 81))
    ask = "socket.getaddrinfo('example.org', 80, socket.AF_INET, 0, 0, socket.AI_ADDRCONFIG)"
    tell(own_kind=box.run_code(f"import socket; print({ask}[0][4][0])").stdout)
    tell(environment=box.exec("env").stdout)
    tell(twice=[get(box, "example.org"), len(gates())])
    with box.fork() as copy:
        tell(fork=get(copy, "example.org"), gates=len(gates()))
tell(paths=[request["path"] for request in served.requests], others=loopback.connections)
tell(after=wait_until(lambda: not gates()))
""",
        user,
    )
    assert told["name"][0].endswith("200 OK")
    assert told["name"][1] == told["address"][1] == []
    assert told["address"][0].endswith("200 OK")
    assert told["other"] == ["no name", [["example.com", None, "policy"]]]
    assert told["port"][1] == [["example.org", 81, "policy"]]
    assert "PROXY" not in told["environment"].upper()
    assert told["own_kind"].startswith(("198.18.", "198.19."))
    assert told["twice"][0][0].endswith("200 OK")
    assert told["twice"][1] == 1
    assert told["fork"][0].endswith("200 OK")
    assert told["gates"] == 2
    assert told["paths"] == ["/a", "/a", "/a"]
    assert told["others"] == 0
    assert told["after"]


@pytest.mark.needs_root  # which may set it
@pytest.mark.parametrize("anything", [0, 1])
def test_the_machines_own_addresses_are_not_of_the_internet(anything: int) -> None:
    """Also where programs may bind addresses that the machine does not have (ip_nonlocal_bind)."""
    told = run(
        """
for file in ("ipv4/ip_nonlocal_bind", "ipv6/ip_nonlocal_bind"):
    open(f"/proc/sys/net/{file}", "w").write(str(anything))
serve(web, "93.184.215.14", 80, name="example.org")
serve(web, "2a00:1450::1", 80, name="six.example.org")
with Sandbox(network="open") as box:
    tell(name=get(box, "example.org"), six=get(box, "six.example.org"), own=get(box, OWN_ADDRESS)[1])
    tell(own_six=get(box, OWN_ADDRESS_6)[1])
""".replace("anything", str(anything)),
        None,
    )
    assert told["name"][0].endswith("200 OK")
    assert told["six"][0].endswith("200 OK")
    assert [denied[2] for denied in told["own"]] == ["private"]
    assert [denied[2] for denied in told["own_six"]] == ["private"]


@EVERYBODY
def test_the_network_of_a_running_sandbox_changes(user: OrdinaryUser | None) -> None:
    told = run(
        """
serve(web, "93.184.215.14", 80, name="example.org")
stream = serve(drip, "93.184.215.14", 82)
HANG = '''
import socket
sock = socket.create_connection(("example.org", 82))
print(len(sock.recv(1)), end="", flush=True)
try:
    while sock.recv(65536): pass
    print("closed", flush=True)
except OSError: print("reset", flush=True)
'''
with Sandbox() as box:
    tell(none=get(box, "example.org"))
    box.set_network(["example.org"])
    tell(listed=get(box, "example.org"), spec=str(box.spec.network))
    hanging = box.start(["python3", "-c", HANG])
    output = iter(hanging.output())
    tell(connected=next(output).text)
    box.set_network(["example.com"])
    tell(ended="".join(chunk.text for chunk in output))
    tell(other=get(box, "example.org"))
    box.set_network("none")
    tell(again_none=get(box, "example.org"))
    box.set_network(["example.org"])
    tell(again_listed=get(box, "example.org"), gates=len(gates()))
""",
        user,
    )
    assert told["none"] == ["no name", [["example.org", None, "no network"]]]
    assert told["listed"][0].endswith("200 OK")
    assert told["spec"] == "example.org"
    assert told["connected"].strip() == "1"
    assert told["ended"].strip() in ("closed", "reset")
    assert told["other"] == ["no name", [["example.org", None, "policy"]]]
    assert told["again_none"] == ["no name", [["example.org", None, "no network"]]]
    assert told["again_listed"][0].endswith("200 OK")
    assert told["gates"] == 1


@EVERYBODY
def test_a_detached_sandbox_keeps_its_network_whoever_ends(user: OrdinaryUser | None) -> None:
    told = run(
        """
import asyncio
from corral.backends.embedded import EmbeddedBackend
from support.leftovers import adopt_orphans
adopt_orphans()
serve(web, "93.184.215.14", 80, name="example.org")
box = Sandbox(network=["example.org"])
tell(owned=get(box, "example.org"))
(first,) = gates()
name = box.detach()
tell(detached=get(box, "example.org"), same=gates() == [first])
box.close()
box = Sandbox.connect(name)
tell(spec=str(box.spec.network), connected=get(box, "example.org"), still=gates() == [first])
os.kill(first, 9)
tell(crashed=get(box, "example.org"), another=gates() != [first] and len(gates()) == 1)
box.set_network(["example.com"])
tell(changed=get(box, "example.org"), listed=str(Sandbox.connect(name).spec.network))
tell(shown=[each.network for each in Sandbox.list()])
box.stop()
tell(stopped=wait_until(lambda: not gates()))
async def start():
    backend = EmbeddedBackend()
    box = await backend.start(name)
    await box.aclose()
    await backend.aclose()
asyncio.run(start())
box = Sandbox.connect(name)
tell(started=[str(box.spec.network), get(box, "example.org")])
box.set_network(["example.org"])
tell(finally_listed=get(box, "example.org"))
box.kill()
box.close()
tell(after=wait_until(lambda: not gates()))
""",
        user,
    )
    for name in ("owned", "detached", "connected", "crashed", "finally_listed"):
        assert told[name][0].endswith("200 OK"), (name, told)
    assert told["same"]
    assert told["still"]
    assert told["another"]
    assert told["spec"] == "example.org"
    assert told["changed"] == ["no name", [["example.org", None, "policy"]]]
    assert told["listed"] == "example.com"
    assert told["shown"] == ["example.com"]
    assert told["stopped"]
    assert told["started"] == ["example.com", ["no name", [["example.org", None, "policy"]]]]
    assert told["after"]


@EVERYBODY
def test_nothing_is_left_when_a_holder_is_killed(user: OrdinaryUser | None) -> None:
    told = run(
        """
from support.leftovers import adopt_orphans, list_children
adopt_orphans()
box, other = Sandbox(network=["example.org"]), Sandbox(network=["example.org"])
name = other.detach()
get(box, "example.com"), get(other, "example.com")
tell(gates=len(gates()))
(launcher,) = [pid for pid, called in list_children(os.getpid()).items() if called == "corral-launcher"]
(keeper,) = [pid for pid, called in list_descendants(os.getpid()).items() if called == "corral-keeper"]
os.kill(keeper, 9)
tell(without_keeper=wait_until(lambda: len(gates()) == 1))
os.kill(launcher, 9)
tell(without_launcher=wait_until(lambda: not gates()))
""",
        user,
    )
    assert told == {"gates": 2, "without_keeper": True, "without_launcher": True}


@EVERYBODY
def test_a_gate_that_always_fails_lets_nothing_out_and_does_not_keep_its_holder_busy(user: OrdinaryUser | None) -> None:
    told = run(
        """
served = serve(count, "93.184.215.14", 80, name="example.org")
FLOOD = '''
import socket
while True:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range(100): sock.sendto(b"x" * 40, ("127.77.0.1", 53))
    tcp = socket.socket(); tcp.setblocking(False)
    try: tcp.connect(("93.184.215.14", 80))
    except OSError: pass
'''
with Sandbox(network=["example.org"]) as box, Sandbox() as other:
    flood = box.start(["python3", "-c", FLOOD])
    killed = 0
    while killed < 3:
        for pid in gates():
            os.kill(pid, 9)
            killed += 1
        assert other.exec("true").exit_code == 0
        time.sleep(0.02)
    flood.kill()
    tell(killed=killed, connections=served.connections, usage=box.usage().memory_bytes is not None)
    tell(back=get(box, "example.com"))
""",
        user,
    )
    assert told["killed"] >= 3
    assert told["usage"]
    assert told["back"][0] == "no name"


@EVERYBODY
def test_no_descriptor_and_no_process_is_left(user: OrdinaryUser | None) -> None:
    told = run(
        """
from support.leftovers import count_descriptors, list_children
def round():
    with Sandbox(network=["example.org"]) as box:
        get(box, "example.com")
        box.set_network("none")
        box.set_network("open")
        (gate,) = gates()
        os.kill(gate, 9)
    with Sandbox() as box:
        get(box, "example.com")
        box.set_network(["example.com"])
        get(box, "example.com")
        box.set_network(["example.com"])
def zombies():
    return [line for line in os.popen("ps -eo ppid,stat").read().splitlines() if line.split() == [str(launcher), "Z"]]
round()
(launcher,) = [pid for pid, name in list_children(os.getpid()).items() if name == "corral-launcher"]
before = count_descriptors(launcher), count_descriptors()
for _ in range(3): round()
tell(same=wait_until(lambda: count_descriptors(launcher) <= before[0] and count_descriptors() <= before[1]))
tell(gates=gates(), zombies=wait_until(lambda: not zombies()))
""",
        user,
    )
    assert told == {"same": True, "gates": [], "zombies": True}


@pytest.mark.needs_root
def test_a_gate_that_was_taken_over_does_not_keep_its_holder_busy(tmp_path: Path) -> None:
    library = tmp_path / "library"
    shutil.copytree(ROOT / "src/corral", library / "corral", ignore=shutil.ignore_patterns("__pycache__"))
    gate = library / "corral/network/gate.py"
    ready = 'self._say({"ok": True, "ready": True})'
    assert gate.read_text().count(ready) == 1
    gate.write_text(gate.read_text().replace(ready, f"while True: {ready}"))
    told = ground.run(
        TOOLS
        + """
with Sandbox(network=["example.org"]) as box, Sandbox() as other:
    box.start(["python3", "-c", "import socket; socket.getaddrinfo('example.com', 80)"])
    wait_until(gates)
    first = set(gates())
    tell(ended=wait_until(lambda: not first & set(gates())), other=other.exec("true").exit_code)
""",
        env={"PYTHONPATH": f"{library}:{ROOT / 'tests'}"},
    )
    assert told == {"ended": True, "other": 0}


@pytest.mark.needs_root
def test_without_nf_tables_programs_that_use_the_proxy_reach_what_is_listed(tmp_path: Path) -> None:
    library = tmp_path / "library"
    shutil.copytree(ROOT / "src/corral", library / "corral", ignore=shutil.ignore_patterns("__pycache__"))
    redirect = library / "corral/engine/redirect.py"
    refusing = "    raise OSError(93, 'no such protocol')\n"
    text, count = re.subn(
        r"(def install\(.*?\"\"\".*?\"\"\"\n)", rf"\1{refusing}", redirect.read_text(), flags=re.DOTALL
    )
    assert count == 1
    redirect.write_text(text)
    told = ground.run(
        TOOLS
        + """
import asyncio
from corral.backends.embedded import EmbeddedBackend
serve(web, "93.184.215.14", 80, name="example.org")
FETCH_BY_PROXY = "import urllib.request as u; print(u.urlopen('http://example.org/a').status)"
def by_proxy(box):
    result = box.exec(["python3", "-c", FETCH_BY_PROXY])
    return [result.stdout.strip() or result.stderr.splitlines()[-1], [each.rule for each in result.denied]]
with Sandbox(network=["example.org"]) as box:
    tell(direct=get(box, "93.184.215.14"), proxied=by_proxy(box))
with Sandbox() as box:
    tell(none=by_proxy(box), variables=box.exec("env | grep -ci proxy").stdout.strip())
    # A program inside has the usual port.
    server = box.start(["python3", "-m", "http.server", "3128"])
    while "0C38" not in box.exec("cat /proc/net/tcp").stdout: time.sleep(0.02)
    box.set_network(["example.org"])
    tell(later=by_proxy(box), proxy=box.exec("echo $HTTPS_PROXY").stdout.strip())
    name = box.detach()
    with Sandbox.connect(name) as same:
        tell(connected=by_proxy(same))
    box.kill()
async def notes():
    backend = EmbeddedBackend()
    found = (await backend.capabilities()).notes
    await backend.aclose()
    return [note for note in found if "nf_tables" in note]
tell(notes=asyncio.run(notes()))
""",
        env={"PYTHONPATH": f"{library}:{ROOT / 'tests'}"},
    )
    assert told["direct"] == ["OSError 101", []]
    assert told["proxied"] == told["later"] == told["connected"] == ["200", []]
    assert told["none"][1] == ["no network"]
    assert told["variables"] == "0"
    assert told["proxy"] == "http://127.77.0.1:3129"
    assert len(told["notes"]) == 1


@pytest.mark.needs_root
def test_every_way_of_running_tells_what_was_refused() -> None:
    told = ground.run(
        TOOLS
        + """
CODE = "import socket\\ntry: socket.getaddrinfo('example.com', 80)\\nexcept OSError: print('no')"
def rules(result): return [[each.host, each.rule] for each in result.denied]
with Sandbox(network=["example.org"]) as box:
    tell(exec=rules(box.exec(["python3", "-c", CODE])), code=rules(box.run_code(CODE)))
    started = box.start(["python3", "-c", CODE])
    tell(start=rules(started.wait()))
    tell(session=rules(box.open_session("s").run("getent hosts example.com")))
    tell(interpreter=rules(box.interpreter.execute(CODE)))
    tell(others=rules(box.exec("true")))
"""
    )
    others = told.pop("others")
    assert others == []
    for name, denied in told.items():
        assert denied == [["example.com", "policy"]], name
