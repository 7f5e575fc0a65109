"""Secrets from end to end: programs inside use a value that they never see, as root and as an ordinary user."""

import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import ground
from support.certificates import Certificates, make_certificates
from support.user import open_ordinary_user

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is Linux only")

Run = Callable[..., dict[str, Any]]
CANARY = "canary-value-of-a-secret"
PREPARE = """
folder = os.environ["CORRAL_DATA_DIR"].rsplit("/", 1)[0]
os.environ["SSL_CERT_FILE"] = f"{folder}/trusted.pem"
open(f"{folder}/trusted.pem", "w").write(AUTHORITY)
api = serve(web, "93.184.215.14", 443, name="api.example.org", tls=TLS)
plain = serve(web, "93.184.215.14", 80, name="api.example.org")
other = serve(web, "93.184.215.15", 443, name="other.example.org", tls=TLS)
NETWORK = ["api.example.org", "other.example.org"]
KEY = Secret("KEY", CANARY, ["api.example.org"])
def sent(server, header="authorization"): return [each["headers"].get(header) for each in server.requests]
def rules(result): return sorted({(each.host, each.port, each.rule) for each in result.denied})
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    names = ("api.example.org", "other.example.org", "index.example.org")
    return make_certificates(tmp_path_factory.mktemp("certificates"), *names)


@pytest.fixture(
    params=[
        pytest.param("root", marks=pytest.mark.needs_root),
        pytest.param("user", marks=[pytest.mark.needs_user, pytest.mark.needs_userns]),
    ]
)
def on_ground(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Run]:
    """Runs a program as each of the two, with servers that have secrets."""
    given = {"AUTHORITY": certificates.authority.read_text(), "TLS": certificates.texts, "CANARY": CANARY}
    if request.param == "root":
        yield lambda program, **more: ground.run(PREPARE + textwrap.dedent(program), **given, **more)
        return
    with open_ordinary_user() as user:
        yield lambda program, **more: ground.run(PREPARE + textwrap.dedent(program), user=user, **given, **more)


CLIENTS = r"""
import json, os, shutil, socket, ssl, subprocess, urllib.request
from pip._vendor import requests
key, url = os.environ["KEY"], "https://api.example.org"
told = {}
asked = urllib.request.Request(url + "/urllib", headers={"Authorization": "Bearer " + key})
told["urllib"] = json.load(urllib.request.urlopen(asked, timeout=20))["path"]
session = requests.Session()
for turn in range(2):  # on one connection
    answer = session.post(url + "/requests", data=iter([b"a" * 70_000, key.encode()]), auth=("user", key), timeout=20)
    body = answer.json()["body"]
    told["requests"] = [len(body), body.endswith(key)]
programs = {
    "curl": ["curl", "-sS", "-m", "20", "-H", "Authorization: token " + key, url + "/curl"],
    "expecting": ["curl", "-sS", "-m", "20", "-H", "Expect: 100-continue", "-d", "x", "-u", "u:" + key, url + "/curl"],
    "proxied": ["curl", "-sS", "-m", "20", "-x", "http://127.77.0.1:3128", "-H", "Authorization: " + key, url + "/p"],
    "git": ["git", "-c", "http.extraHeader=Authorization: Bearer " + key, "ls-remote", url + "/git"],
    "node": ["node", "-e", "fetch(process.argv[1], {headers: {Authorization: process.argv[2]}})"
        ".then(a => a.json()).then(a => console.log(a.path))", url + "/node", key],
}
for name, argv in programs.items():
    if shutil.which(argv[0]) is None:
        continue
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    told[name] = done.returncode if name == "git" else done.stdout.strip()[:200] or done.stderr
context = ssl.create_default_context()
with context.wrap_socket(socket.create_connection(("api.example.org", 443)), server_hostname="api.example.org") as web:
    web.sendall(f"GET /ws HTTP/1.1\r\nHost: api.example.org\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Authorization: {key}\r\nSec-WebSocket-Version: 13\r\n"
                f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head:
        head += web.recv(1000)
    web.sendall(bytes([0x81, 0x80 | len(key), 0, 0, 0, 0]) + key.encode())
    told["websocket"] = [head.split()[1].decode(), web.recv(100)[2:].decode() == key]
print(json.dumps(told))
"""


def test_clients_use_a_value_that_they_never_see(on_ground: Run) -> None:
    """Each through its own trust store, also on one connection, with large bodies, Basic, and Expect."""
    answer = on_ground(
        """
        with Sandbox(network=NETWORK, secrets=[KEY]) as box:
            result = box.run_code(CLIENTS, timeout=120)
            tell(output=result.output, clients=result.ok and json.loads(result.stdout), denied=rules(result))
        tell(seen=[[each["path"].partition("?")[0], each["headers"].get("authorization")] for each in api.requests])
        """,
        CLIENTS=CLIENTS,
    )
    seen = dict(answer["seen"])
    assert answer["clients"], answer["output"]
    assert answer["denied"] == []
    assert answer["clients"]["requests"] == [len(b"a" * 70_000) + 46, True]
    assert answer["clients"]["websocket"] == ["101", True]
    assert seen["/ws"] == CANARY
    assert seen["/urllib"] == f"Bearer {CANARY}"
    assert seen["/requests"] == "Basic dXNlcjpjYW5hcnktdmFsdWUtb2YtYS1zZWNyZXQ="
    assert [name for name, _ in answer["seen"]].count("/requests") == 2
    assert seen["/curl"] == "Basic dTpjYW5hcnktdmFsdWUtb2YtYS1zZWNyZXQ="
    assert seen["/p"] == CANARY
    if "git" in answer["clients"]:
        assert seen["/git/info/refs"] == f"Bearer {CANARY}"
    if "node" in answer["clients"]:
        assert answer["clients"]["node"] == "/node"
        assert seen["/node"] == CANARY


ELSEWHERE = r"""
ask() { curl -sS -m 10 "$@" || true; }
ask https://api.example.org/in-the-url?key=$KEY
ask https://api.example.org/in-the-body -d key=$KEY
ask https://api.example.org/in-another-header -H "X-Key: $KEY" -H "Cookie: $KEY"
ask https://api.example.org/absent
ask https://other.example.org/elsewhere -H "Authorization: Bearer $KEY"
ask http://api.example.org/plain -H "Authorization: Bearer $KEY"
ask https://api.example.org/twice -H "Authorization: $KEY" -H "authorization: other"
ask https://api.example.org/trace -X TRACE -H "Authorization: Bearer $KEY"
ask https://api.example.org/another-host -H "Host: other.example.org" -H "Authorization: Bearer $KEY"
ask https://other.example.org/fronted -H "Host: api.example.org" -H "Authorization: Bearer $KEY"
ask https://api.example.org/pinned --cacert /etc/ssl/certs/ca-certificates.crt -H "Authorization: Bearer $KEY"
python3 - <<'END'
import os, socket, ssl
context = ssl.create_default_context()
context.set_alpn_protocols(["h2"])
try:
    context.wrap_socket(socket.create_connection(("api.example.org", 443)), server_hostname="api.example.org")
except ssl.SSLError as error:
    print("h2:", error)
context.set_alpn_protocols(["http/1.1"])
head = f"GET /pipelined HTTP/1.1\r\nHost: api.example.org\r\nAuthorization: {os.environ['KEY']}\r\n"
for lines in ("X: 1\r\n\r\n", "X: 1\r\n\r\n", "Connection: close\r\n\r\n"):
    head_and = head + lines
with context.wrap_socket(socket.create_connection(("api.example.org", 443)), server_hostname="api.example.org") as tls:
    tls.sendall(((head + "X: 1\r\n\r\n") * 2 + head + "Connection: close\r\n\r\n").encode())
    answer = b""
    while piece := tls.recv(65536):
        answer += piece
    print("pipelined:", answer.count(b"HTTP/1.1 200"))
END
"""


def test_a_placeholder_elsewhere_stays_one(on_ground: Run) -> None:
    """In the URL, the body, another header, for another host, without TLS: no value, and what was refused is seen."""
    answer = on_ground(
        """
        with Sandbox(network=NETWORK, secrets=[KEY]) as box:
            result = box.exec(["bash", "-c", ELSEWHERE], timeout=60)
            tell(output=result.output, denied=rules(result), key=box.exec("printenv KEY").stdout.strip())
        tell(api=api.requests, plain=plain.requests, other=other.requests)
        """,
        ELSEWHERE=ELSEWHERE,
    )
    reached = {each["path"].partition("?")[0]: each for each in answer["api"]}
    assert list(reached) == [
        "/in-the-url", "/in-the-body", "/in-another-header", "/absent", "/pipelined"
    ]  # fmt: skip
    assert sent_values(answer["api"]) == [CANARY] * 3  # the pipelined ones
    assert answer["plain"] == []
    # TLS to a host without a secret is not opened: what it asks for there, under any name, goes out as it is.
    assert [each["headers"]["authorization"] for each in answer["other"]] == [f"Bearer {answer['key']}"] * 2
    assert CANARY not in str(answer["other"])
    assert {tuple(each) for each in answer["denied"]} == {
        ("api.example.org", 80, "secret"),
        ("api.example.org", 443, "secret"),
        ("other.example.org", 443, "host"),
    }
    assert "pipelined: 3" in answer["output"]
    assert "given twice" in answer["output"]
    assert "whose answer would show it" in answer["output"]
    assert "no application protocol" in answer["output"]


def sent_values(requests: list[dict[str, Any]]) -> list[str]:
    """The values that a server got, anywhere."""
    return [CANARY for each in requests if CANARY in str(each)]


SEARCH = r"""
import os, sys
words = [bytes.fromhex(word) for word in sys.argv[1:]]
found = []
def look(path, most=32 << 20):
    try:
        with open(path, "rb") as file:
            data = file.read(most)
    except OSError:
        return
    if any(word in data for word in words):
        found.append(path)
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) != os.getpid():
        for name in ("cmdline", "environ", "comm"):
            look(f"/proc/{pid}/{name}")
for top in ("/etc", "/home", "/tmp", "/run", "/var", "/opt/corral", "/dev/shm", "/workspace", "/root"):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                look(path)
print(found)
"""


def test_the_value_is_nowhere_to_be_read(on_ground: Run) -> None:
    """Inside, in the data folder, in what other processes of this machine can see, in texts, and in snapshots."""
    answer = on_ground(
        """
        import pathlib
        words = [CANARY.encode().hex(), CANARY[::-1].encode().hex()]
        def on_host():
            found = []
            for path in pathlib.Path(os.environ["CORRAL_DATA_DIR"]).rglob("*"):
                if path.is_file() and not path.is_symlink() and path.stat().st_size < 64 << 20:
                    if CANARY.encode() in path.read_bytes():
                        found.append(str(path))
            for folder in pathlib.Path("/proc").glob("[0-9]*"):
                for name in ("cmdline", "environ"):
                    try:
                        if CANARY.encode() in (folder / name).read_bytes():
                            found.append(f"{folder}/{name}")
                    except OSError:
                        pass
            return found
        def gates():
            found = []
            for folder in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    if (folder / "comm").read_text().startswith("corral-gate"):
                        limits = (folder / "limits").read_text()
                        core = next(line.split()[4] for line in limits.splitlines() if line.startswith("Max core"))
                        found.append([os.stat(folder / "environ").st_uid, core])
                except OSError:
                    pass
            return found
        told = {}
        box = Sandbox(network=NETWORK, secrets=[KEY])
        box.exec('curl -sS -H "Authorization: $KEY" https://api.example.org/ > /dev/null')
        tell(inside=box.exec(["python3", "-c", SEARCH, *words], timeout=60).output, owned=on_host(), gates=gates())
        box.detach(name="kept")
        tell(detached=on_host(), texts=[CANARY in repr(value) for value in (KEY, box.spec, box, box.info())])
        snapshot = box.snapshot()
        tell(snapshot=on_host())
        with Sandbox(snapshot=snapshot) as again:
            tell(again=again.exec(["python3", "-c", SEARCH, *words], timeout=60).output)
        tell(used=sent(api))
        box.kill()
        """,
        SEARCH=SEARCH,
    )
    gates = answer.pop("gates")
    assert answer == {
        "inside": "[]\n", "owned": [], "detached": [], "texts": [False] * 4, "snapshot": [], "again": "[]\n",
        "used": [CANARY],
    }  # fmt: skip
    assert gates  # no dump of it is written, and nobody but root may look into it
    assert all(owner == 0 and core in ("0", "1") for owner, core in gates) or all(owner != 0 for owner, _ in gates)


MAKER = f"""
import os
from corral import *
box = Sandbox(
    network=["api.example.org", "other.example.org"], secrets=[Secret("KEY", {CANARY!r}, ["api.example.org"])]
)
box.detach(name="life")
print(box.exec("printenv KEY").stdout.strip(), flush=True)
os.kill(os.getpid(), 9)
"""


def test_secrets_over_a_sandboxs_life(on_ground: Run) -> None:
    """They are replaced while it runs, outlive their creator, stay through another policy, and end with a stop."""
    answer = on_ground(
        """
        import subprocess
        ASK = 'curl -sS -m 10 -H "Authorization: $KEY" https://api.example.org/'
        done = subprocess.run([sys.executable, "-"], input=MAKER, capture_output=True, text=True)
        placeholder = done.stdout.strip()
        with Sandbox.connect("life") as box:
            box.exec(ASK)
            tell(adopted=sent(api), kept=box.exec("printenv KEY").stdout.strip() == placeholder)
            with Sandbox.connect("life") as handle:
                box.set_network([*NETWORK, "more.example.org"])
                handle.set_secrets([Secret("KEY", CANARY, ["api.example.org"], "X-Key")])
                box.set_network([*NETWORK, "more.example.org"])
                tell(changed=[str(handle.spec.network), Sandbox.connect("life").spec.secrets[0].header])
                box.set_secrets([Secret("KEY", CANARY, ["api.example.org"])])
            box.exec(ASK)
            tell(after_network=sent(api)[1:])
            authority = box.files.read("/etc/corral/authority.pem")
            box.set_secrets([Secret("KEY", "rotated", ["api.example.org"])])
            tell(same_authority=box.files.read("/etc/corral/authority.pem") == authority)
            box.exec(ASK)
            box.stop()
        import asyncio
        async def start():
            await (await get_backend().start("life")).aclose()
        asyncio.run(start())
        with Sandbox.connect("life") as box:
            refused = box.exec(ASK)
            tell(rotated=sent(api)[2:], refused=refused.output, rules=rules(refused))
            tell(another_authority=box.files.read("/etc/corral/authority.pem") != authority)
            more = Secret("MORE", "more", ["other.example.org"])
            box.set_secrets([Secret("KEY", "again", ["api.example.org"]), more])
            result = box.exec(ASK + '; curl -sS -H "Authorization: $MORE" https://other.example.org/')
            tell(again=sent(api)[3:], more=sent(other), same=box.exec("printenv KEY").stdout.strip() == placeholder)
            box.set_secrets([])
            gone = box.exec(ASK + '; printenv KEY')
            tell(gone=sent(api)[4:], variables=box.exec("printenv SSL_CERT_FILE").stdout.strip())
            box.kill()
        """,
        MAKER=MAKER,
    )
    assert "not known since the sandbox was stopped" in answer.pop("refused")
    assert answer == {
        "changed": ["api.example.org,other.example.org,more.example.org", "X-Key"],
        "adopted": [CANARY], "kept": True, "after_network": [CANARY], "same_authority": True, "rotated": ["rotated"],
        "rules": [["api.example.org", 443, "secret"]], "another_authority": True, "again": ["again"],
        "more": ["more"], "same": True, "gone": [None], "variables": "/etc/ssl/certs/ca-certificates.crt",
    }  # fmt: skip


def test_a_program_can_not_keep_a_secret_by_spoiling_its_certificates(on_ground: Run) -> None:
    """Other secrets are in force, and the sandbox starts again; what is spoiled is the program's own TLS."""
    answer = on_ground(
        """
        import asyncio
        ASK = 'curl -sS -m 10 -k -H "Authorization: $KEY" https://api.example.org/'
        with Sandbox(network=NETWORK, secrets=[KEY]) as box:
            box.exec("cd /etc/corral; rm *; mkdir -p ca-certificates.crt/x; chmod 500 .", check=True)
            box.set_secrets([Secret("KEY", "moved", ["other.example.org"])])
            box.exec(ASK)
            tell(moved=CANARY in str(api.requests), hosts=list(box.spec.secrets[0].hosts))
            box.detach(name="spoiled")
            box.stop()
        async def start():
            await (await get_backend().start("spoiled")).kill()
        asyncio.run(start())
        """
    )
    assert answer == {"moved": False, "hosts": ["other.example.org"]}


def test_login_of_an_index_stays_outside(on_ground: Run) -> None:
    """The gate adds it to what pip asks for, in a sandbox and where packages are resolved; never to what publishes."""
    answer = on_ground(
        """
        from pathlib import Path
        from support.wheels import make_wheel
        folder = Path.cwd() / "wheels"
        make_wheel(folder, "hello")
        LOGIN = "reader:canary-password"
        index = serve(pip_index, "93.184.215.20", 443, name="index.example.org", tls=TLS, folder=folder, login=LOGIN)
        os.environ |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"https://{LOGIN}@index.example.org/simple"}
        for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"): os.environ.pop(name, None)
        show = "import hello; print(hello.version)"
        with Sandbox(network="packages") as box:
            pip = "python3 -m pip install -q --no-input --retries 0 --target there hello"
            result = box.exec(f"{pip} && PYTHONPATH=there python3 -c '{show}'", timeout=60)
            tell(pip=result.stdout if result.ok else result.output, denied=rules(result))
            texts = box.exec("env; cat ~/.*rc ~/.config/pip/* /etc/pip.conf /etc/corral/* 2> /dev/null").output
            tell(shown="canary" in texts or "cmVhZGVy" in texts)
            before = len(index.requests)
            box.exec("curl -sS -X POST https://index.example.org/simple/hello/")
            tell(posted=[each["headers"].get("authorization") for each in index.requests[before:]])
        with Sandbox(packages=["hello"]) as box:
            tell(resolved=box.run_code(show).output)
        """
    )
    assert answer == {"pip": "1.0\n", "denied": [], "shown": False, "posted": [None], "resolved": "1.0\n"}


def test_a_missing_package_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from corral import BackendUnavailableError, Sandbox, Secret

    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(BackendUnavailableError) as refused:
        Sandbox(network=["api.example.org"], secrets=[Secret("KEY", CANARY, ["api.example.org"])])
    assert "cryptography" in str(refused.value)
    assert refused.value.hint == "pip install 'corral[secrets]'"
    assert CANARY not in repr(refused.value)


def test_start_names_what_has_to_be_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint of `corral sandbox start` is followed to its end."""
    monkeypatch.setenv("CORRAL_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("KEY", CANARY)

    def corral(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "corral.cli", "sandbox", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
        assert CANARY not in done.stdout + done.stderr
        return done

    given = ("--network", "a.invalid,*.b.invalid", "--secret", "KEY@a.invalid,*.b.invalid/X-Key")
    corral("create", "--name", "box", *given)
    try:
        corral("stop", "box")
        hint = corral("start", "box").stderr.partition("corral sandbox secrets box")[2]
        assert "missing: give it again" in corral("secrets", "box").stdout
        assert "known" in corral("secrets", "box", *shlex.split(hint)).stdout
    finally:
        corral("rm", "box")
