"""The window from end to end: real clients inside, servers in a world of our own, as root and as an ordinary user."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support import ground
from support.certificates import Certificates, make_certificates
from support.user import open_ordinary_user

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is Linux only")

Run = Callable[..., dict[str, Any]]


@pytest.fixture(
    params=[
        pytest.param("root", marks=pytest.mark.needs_root),
        pytest.param("user", marks=[pytest.mark.needs_user, pytest.mark.needs_userns]),
    ]
)
def on_ground(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a program as each of the two."""
    if request.param == "root":
        yield ground.run
        return
    with open_ordinary_user() as user:
        yield lambda program, **more: ground.run(program, user=user, **more)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    return make_certificates(folder, "secure.example.org")


CLIENTS = r"""
import json, socket, ssl, subprocess, urllib.request
told = {}
def page(address, **options):
    with urllib.request.urlopen(address, timeout=10, **options) as answer:
        return json.load(answer)["path"]
trusting = ssl.create_default_context(cafile="ca.pem")
told["http"] = page("http://example.org/a")
told["tls"] = page("https://secure.example.org/a", context=trusting)
try:
    page("https://secure.example.org/a")
except OSError as error:
    told["untrusted"] = "CERTIFICATE_VERIFY_FAILED" in str(error)

with socket.create_connection(("example.org", 25), timeout=10) as mail:
    told["banner"] = mail.recv(100).decode()
    mail.sendall(b"HELO")
    told["mail"] = mail.recv(100).decode()

with socket.create_connection(("example.org", 80), timeout=10) as web:
    web.sendall(b"GET /ws HTTP/1.1\r\nHost: example.org\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
    head = b""
    while b"\r\n\r\n" not in head:
        head += web.recv(1000)
    web.sendall(bytes([0x81, 0x82, 0, 0, 0, 0]) + b"hi")
    told["websocket"] = [head.split()[1].decode(), web.recv(100)[2:].decode()]

proxy = "127.77.0.1:3128"
for name, options in {
    "curl": "http://example.org/a",
    "proxied": f"-x http://{proxy} http://example.org/a",
    "tunnelled": f"-p -x http://{proxy} http://example.org/a",
    "socks": f"--socks5-hostname {proxy} http://example.org/a",
    "tunnelled_tls": f"--cacert ca.pem -x http://{proxy} https://secure.example.org/a",
}.items():
    done = subprocess.run(["curl", "-s", "-m", "10", *options.split()], capture_output=True)
    told[name] = json.loads(done.stdout)["path"] if done.stdout else f"exit code {done.returncode}"
print(json.dumps(told))
"""
REFUSED = """
for address in http://other.example/ http://secure.example.org/ http://169.254.169.254/; do curl -s -m 10 $address; done
curl -sS -m 10 -x http://127.77.0.1:3128 http://other.example/
echo over
"""


def test_clients(on_ground: Run, certificates: Certificates) -> None:
    """Transparent HTTP and TLS, a server that speaks first, a websocket, and each kind of explicit proxy."""
    answer = on_ground(
        """
        serve(web, "93.184.215.14", 80, name="example.org")
        serve(banner, "93.184.215.14", 25, name="example.org")
        other = serve(count, "93.184.215.15", 80, name="other.example")
        serve(web, "93.184.215.16", 443, name="secure.example.org", tls=TLS)
        with Sandbox(network=["example.org", "secure.example.org:443"]) as box:
            box.files.write("ca.pem", AUTHORITY)
            result = box.run_code(CLIENTS, timeout=60)
            tell(denied=list(map(str, result.denied)))
            tell(clients=json.loads(result.stdout) if result.ok else result.output)
            refused = box.exec(REFUSED)
            tell(refused=refused.output, rules=[[each.host, each.port, each.rule] for each in refused.denied])
        tell(connections=other.connections)
        """,
        CLIENTS=CLIENTS,
        REFUSED=REFUSED,
        AUTHORITY=certificates.authority.read_bytes(),
        TLS=certificates.texts,
    )
    pages = ("http", "tls", "curl", "proxied", "tunnelled", "socks", "tunnelled_tls")
    assert answer["clients"] == dict.fromkeys(pages, "/a") | {
        "untrusted": True,
        "banner": "220 ready\r\n",
        "mail": "HELO",
        "websocket": ["101", "hi"],
    }
    assert answer["denied"] == []
    assert answer["refused"].endswith("over\n")
    assert "secure.example.org:443" in answer["refused"]  # the proxy says what is permitted
    assert answer["connections"] == 0
    rules = {(host, port): rule for host, port, rule in answer["rules"]}
    assert rules == {
        ("other.example", None): "policy",
        ("other.example", 80): "policy",
        ("secure.example.org", 80): "policy",
        ("169.254.169.254", 80): "private",
    }


def test_nothing_is_reached_without_a_policy(on_ground: Run) -> None:
    """A lookup fails at once, and shows; an empty list permits nothing either."""
    answer = on_ground(
        """
        page = serve(count, "93.184.215.14", 80, name="example.org")
        for name, network in {"none": "none", "empty": []}.items():
            with Sandbox(network=network) as box:
                looked = box.exec("getent ahosts example.org; echo $?", timeout=5)
                tell(**{name: [looked.stdout.strip(), [[d.host, d.port, d.rule] for d in looked.denied]]})
                box.exec("curl -s -m 5 http://93.184.215.14/")
                box.exec("curl -s -m 5 -x http://127.77.0.1:3128 http://example.org/")
        tell(connections=page.connections)
        """
    )
    assert answer == {
        "none": ["2", [["example.org", None, "no network"]]],
        "empty": ["2", [["example.org", None, "policy"]]],
        "connections": 0,
    }


TALKS = """
import socket, sys
def say(*words): print(*words, flush=True)
talks = {name: socket.create_connection((name, 25), timeout=10) for name in sys.argv[1:]}
for talk in talks.values():
    talk.recv(100)
say("ready")
sys.stdin.readline()
for name, talk in talks.items():
    try:
        talk.sendall(b"still?")
        say(name, talk.recv(100).decode() or "ended")
    except OSError:
        say(name, "ended")
"""


def test_a_policy_changes_while_connections_live(on_ground: Run) -> None:
    """From nothing to something and back; what is no longer permitted ends, and the rest goes on."""
    answer = on_ground(
        """
        MAIL, NEWS = "mail.example.org", "news.example.org"
        serve(banner, "93.184.215.14", 25, name=MAIL)
        serve(banner, "93.184.215.15", 25, name=NEWS)
        with Sandbox() as box:
            def finds(name): return box.exec(["getent", "ahosts", name]).ok
            tell(before=finds(MAIL))
            box.set_network([MAIL, NEWS])
            process = box.start(["python3", "-c", TALKS, MAIL, NEWS])
            said = b""
            for chunk in process.output():
                said += chunk.data
                if said == b"ready\\n":
                    box.set_network([NEWS])
                    process.write(b"go\\n")
            tell(said=said.decode().splitlines(), finds=[finds(MAIL), finds(NEWS)])
            box.set_network("none")
            tell(after=finds(NEWS))
        """,
        TALKS=TALKS,
    )
    assert answer == {
        "before": False,
        "said": ["ready", "mail.example.org ended", "news.example.org still?"],
        "finds": [False, True],
        "after": False,
    }


def test_a_gate_that_is_killed_and_a_creator_that_is_killed(on_ground: Run) -> None:
    """Without its gate a window is shut, and opens again; a detached sandbox has it as long as it lives itself."""
    answer = on_ground(
        """
        import signal, subprocess
        from support.leftovers import adopt_orphans, count_descriptors, list_descendants, wait_until
        adopt_orphans()  # the keeper stays below us, and no gate of others is taken for ours
        serve(web, "93.184.215.14", 80, name="example.org")
        serve(banner, "93.184.215.14", 25, name="example.org")
        def gates():
            return [pid for pid, name in list_descendants(os.getpid()).items() if name == "corral-gate"]
        def fetches(box):
            return "/a" in box.exec("curl -s -m 20 http://example.org/a").stdout
        with Sandbox(network=["example.org"]) as box:
            tell(before=len(gates()), first=fetches(box), gates=len(gates()))
            process = box.start(["python3", "-c", TALKS, "example.org"])
            said = b""
            for chunk in process.output():
                said += chunk.data
                if said == b"ready\\n":
                    for pid in gates():
                        os.kill(pid, signal.SIGKILL)
                    process.write(b"go\\n")
            tell(said=said.decode().splitlines(), again=fetches(box))
        tell(gone=wait_until(lambda: not gates()))
        creator = subprocess.Popen([sys.executable, "-c", CREATOR], stdout=subprocess.PIPE, text=True)
        sandbox_id = creator.stdout.readline().strip()
        creator.kill()
        creator.wait()
        with Sandbox.connect(sandbox_id) as box:
            tell(detached=fetches(box), denied=list(map(str, box.exec("getent ahosts other.example").denied)))
            box.set_network([])
            tell(changed=fetches(box))
            before = count_descriptors()
            for _ in range(3):
                fetches(box)
            tell(leaked=not wait_until(lambda: count_descriptors() <= before))  # some are closed a moment later
            box.kill()
        tell(over=wait_until(lambda: not gates()))
        """,
        TALKS=TALKS,
        CREATOR="""
from corral import Sandbox
import time
box = Sandbox(network=["example.org"])
box.detach()
print(box.id, flush=True)
time.sleep(600)
""",
    )
    assert answer == {
        "before": 0,
        "first": True,
        "gates": 1,
        "said": ["ready", "example.org ended"],
        "again": True,
        "gone": True,
        "detached": True,
        "denied": ["other.example"],
        "changed": False,
        "leaked": False,
        "over": True,
    }


@pytest.mark.needs_git
@pytest.mark.needs_npm
def test_packages_come_through_what_is_allowed(on_ground: Run) -> None:
    """pip, npm and git, from stand-ins; and not without the policy."""
    answer = on_ground(
        """
        import subprocess
        from pathlib import Path
        from support.wheels import make_wheel
        folder = Path.cwd() / "packages"
        make_wheel(folder, "hello")
        make_npm_package(folder, "hello")
        def git_here(*words): subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
        git_here("init", "-q", "work")
        (folder / "work/file").write_text("from afar")
        for words in (("add", "file"), ("-c", "user.name=A", "-c", "user.email=a@b", "commit", "-qm", "first")):
            git_here("-C", "work", *words)
        git_here("clone", "-q", "--bare", "work", "repository.git")
        serve(pip_index, "93.184.215.20", 80, name="pip.example.org", folder=folder)
        serve(npm_registry, "93.184.215.21", 80, name="npm.example.org", folder=folder, url="http://npm.example.org")
        serve(git, "93.184.215.22", 80, name="git.example.org", folder=folder)
        commands = {
            "pip": "python3 -m pip install -q --no-input --disable-pip-version-check --retries 0 --target there "
                "--index-url http://pip.example.org/simple/ --trusted-host pip.example.org hello "
                "&& PYTHONPATH=there python3 -c 'import hello; print(hello.version)'",
            "npm": "npm install -s --no-audit --no-fund --fetch-retries=0 --registry http://npm.example.org hello "
                "&& node -p 'require(\\"hello\\")'",
            "git": "git clone -q http://git.example.org/repository.git && cat repository/file",
        }
        for name, network in {"refused": ["example.com"], "allowed": ["*.example.org"]}.items():
            with Sandbox(network=network) as box:
                for tool, command in commands.items():
                    result = box.exec(command, timeout=60)
                    denied = sorted({each.host for each in result.denied})
                    tell(**{f"{tool} {name}": result.stdout.strip() if result.ok else denied or result.output})
        """
    )
    assert answer == {
        "pip refused": ["pip.example.org"],
        "npm refused": ["npm.example.org"],
        "git refused": ["git.example.org"],
        "pip allowed": "1.0",
        "npm allowed": "1.0.0",
        "git allowed": "from afar",
    }
