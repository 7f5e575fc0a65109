"""A gate, with a window in a namespace of its own and stand-ins for the world: what passes, what is refused."""

import ssl
import sys
from typing import Any

import pytest

from support import ground
from support.user import OrdinaryUser

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux only")

Answer = dict[str, Any]


def make_hello(name: str) -> bytes:
    """The first message of a TLS client."""
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


START = f"""
from support.gates import gate, tell as hear, window
HELLO = {make_hello("example.org")!r}
EVIL = {make_hello("evil.test")!r}
OTHER = {make_hello("other.test")!r}
def get(host, path="/", *more):
    return "\\r\\n".join([f"GET {{path}} HTTP/1.1", f"Host: {{host}}", *more, "", ""]).encode()
CLOSE = "Connection: close"
def heard(connection, server):  # says how much it has heard, once
    if piece := connection.recv(65536):
        connection.sendall(b"heard %d" % len(piece))
def cut(hello):  # one byte in each record
    return b"".join(b"\\x16\\x03\\x01\\0\\1" + hello[at : at + 1] for at in range(5, len(hello)))
def refused(running, call):
    # What a call gives, and which rules it broke.
    before = running.count()
    answer = call()
    return [answer, *(f"{{host}}:{{port}} {{rule}}" for host, port, rule, _ in running.denied(before))]
"""

PASSES = START + """
six = "2a00:1450::1"
with window() as inside:
    pages = serve(web, "93.184.215.14", 80, name="example.org")
    serve(web, "93.184.215.14", 8080)
    serve(heard, "93.184.215.14", 443)
    serve(banner, "93.184.215.15", 25, name="mail.example.org")
    serve(count, "10.0.0.5", 80, name="inner.example.org")
    metadata = serve(count, "169.254.169.254", 80)
    serve(banner, six, 7)
    serve(heard, "93.184.215.16", 443, name="other.test")
    rules = ("example.org", "*.example.org", "other.test:443", six)
    server = GROUND.answer_names(lambda name, kind: Answer(broken=True) if name.startswith("broken") else None)
    with server, gate(inside, mode="allow", rules=rules, described="example.org") as running:
        say = inside.say
        tell(
            names=[inside.look_up(name)[0]
                for name in ("EXAMPLE.org", "evil.test", "x.example.org", "broken.example.org")],
            six=inside.look_up("example.org", 28),
            private=refused(running, lambda: inside.look_up("inner.example.org")[0]),
            page=say("example.org", 80, get("example.org", "/a", CLOSE)),
            port=say("example.org", 8080, b"\\r\\n" + get("example.org:8080", "/b", CLOSE)),
            tls=[say("example.org", 443, hello) for hello in (HELLO, cut(HELLO), OTHER)],
            raw=say("example.org", 443, b"\\0\\1\\2"),
            head=say("example.org", 80, get("example.org", "/", CLOSE).replace(b"GET", b"HEAD")),
            metadata=refused(running, lambda: say("169.254.169.254", 80, b"")),
            literal=refused(running, lambda: say("93.184.215.14", 80, b"")),
            unknown=refused(running, lambda: say("198.19.7.7", 80, b"")),
        )
        with inside.connect("mail.example.org", 25) as mail:  # the server speaks first, and no byte is waited for
            first = mail.recv(100)
            mail.sendall(b"EH")
            held = mail.recv(100)  # sent on after a moment: it might have been the start of a request
            mail.sendall(b"LO me\\r\\n")
            tell(mail=[first.decode(), held.decode(), mail.recv(100).decode()])
        with inside.connect(six, 7) as made:
            tell(six_greeting=made.recv(100).decode())
        with inside.make_socket(kind=socket.SOCK_DGRAM) as datagram:
            datagram.connect(("93.184.215.14", 443))
            datagram.send(b"QUIC")
            try:
                datagram.recv(100)
            except OSError as error:
                tell(udp=type(error).__name__)
        with inside.connect("example.org", 80) as made:  # a connection for several requests
            reader = made.makefile("rb")
            def read():
                size = 0
                status = int(reader.readline().split()[1])
                while (line := reader.readline().strip().lower()):
                    if line.startswith(b"content-length"): size = int(line.split(b":")[1])
                return status, json.loads(reader.read(size)) if size else None
            made.sendall(get("example.org", "/1"))
            one = read()
            made.sendall(get("example.org", "/2", "Content-Length: 5", "Expect: 100-continue").replace(b"GET", b"POST"))
            go_on = read()
            made.sendall(b"hello" + get("example.org", "/3"))
            tell(several=[one[1]["path"], go_on[0], read()[1]["body"], read()[1]["path"]])
            made.sendall(get("example.org", "/ws", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: a"))
            upgraded = read()[0]
            made.sendall(b"\\x81\\x82\\0\\0\\0\\0hi")
            tell(websocket=[upgraded, reader.read(4).hex()])
        with inside.connect("example.org", 80) as made:
            made.sendall(get("example.org", "/bytes?n=3000000", CLOSE))
            body = b""
            while piece := made.recv(1 << 20): body += piece
            tell(large=len(body.partition(b"\\r\\n\\r\\n")[2]))
        usage = running.ask(op="usage")
        tell(usage=usage, touched=metadata.connections, known=[each["path"] for each in pages.requests])
"""  # fmt: skip


def judge_passing(answer: Answer) -> None:
    assert answer["names"] == [0, 3, 3, 2]
    assert answer["six"] == [0, []]
    assert answer["private"] == [3, "inner.example.org:None private"]
    assert '"path": "/a"' in answer["page"]
    assert '"path": "/b"' in answer["port"]
    assert [text.partition(" ")[0] for text in answer["tls"]] == ["heard"] * 3
    assert answer["raw"] == "heard 3"
    assert answer["head"].startswith("HTTP/1.1 200")
    assert answer["head"].endswith("\r\n\r\n")
    assert answer["metadata"] == ["reset", "169.254.169.254:80 private"]
    assert answer["literal"] == ["reset", "93.184.215.14:80 policy"]
    assert answer["unknown"] == ["reset", "198.19.7.7:80 policy"]
    assert answer["mail"] == ["220 ready\r\n", "EH", "LO me\r\n"]
    assert answer["six_greeting"] == "220 ready\r\n"
    assert answer["udp"] == "ConnectionRefusedError"
    assert answer["several"] == ["/1", 100, "hello", "/3"]
    assert answer["websocket"] == [101, "81026869"]
    assert answer["large"] == 3_000_000
    assert answer["usage"]["bytes_in"] > 3_000_000
    assert answer["usage"]["bytes_out"] > 500
    assert answer["touched"] == 0


def test_what_is_permitted_passes() -> None:
    judge_passing(ground.run(PASSES))


@pytest.mark.needs_user
@pytest.mark.needs_userns
def test_what_is_permitted_passes_for_an_ordinary_user(ordinary_user: OrdinaryUser) -> None:
    judge_passing(ground.run(PASSES, user=ordinary_user))


REFUSED = START + """
HOST, CHUNKED = "Host: example.org", "Transfer-Encoding: chunked"
def head(*lines, first="GET / HTTP/1.1"):
    return "\\r\\n".join([first, *lines, "", ""]).encode("latin-1")
CONNECT = head(HOST, first="CONNECT example.org:443 HTTP/1.1")
BLOCKED = head(HOST, first="CONNECT evil.test:443 HTTP/1.1")
def socks(host, port, command=1):
    return b"\\5\\1\\0" + bytes([5, command, 0, 3, len(host)]) + host.encode() + port.to_bytes(2, "big")
with window() as inside:
    pages = serve(web, "93.184.215.14", 80, name="example.org")
    serve(heard, "93.184.215.14", 443)
    serve(count, "93.184.215.14", 8080)
    serve(banner, "93.184.215.14", 25)
    evil = serve(count, "93.184.215.20", 80, name="evil.test")
    with gate(inside, mode="allow", rules=("example.org", "other.test:80")) as running:
        def at(port, data):
            return refused(running, lambda: inside.say("example.org", port, data))
        def proxy(data, *more):
            with inside.to_proxy() as made:
                made.sendall(data)
                answers = []
                for piece in more:
                    answers.append(made.recv(4096).decode("latin-1"))
                    made.sendall(piece)
                return [*answers, hear(made, b"")]
        tell(
            sni=[at(443, EVIL), at(443, cut(EVIL)), at(443, OTHER)],
            again=at(443, HELLO + EVIL)[1:],
            host=[at(80, data) for data in (
                head("Host: evil.test"), head("Host: other.test"), head("Host: example.org:81"),
                head(HOST, first="GET http://evil.test/ HTTP/1.1"),
            )],
            hidden=[at(8080, head("Host: evil.test")), at(8080, b"\\r\\n" + head("Host: evil.test"))],
            protocol=[at(80, data) for data in (
                head(HOST, "Content-Length: 3", CHUNKED), head(HOST, "Content-Length: 3", "Content-Length: 3"),
                head(HOST, CHUNKED + ", identity"), head(HOST, "X: a", " b"), head(HOST, HOST), head(),
                head(HOST, first="PRI * HTTP/2.0"), head(HOST, first="CONNECT evil.test:80 HTTP/1.1"),
                head(HOST, first="GET / HTTP/3.0"), head(HOST).replace(b"\\r", b""), head(HOST + chr(0)),
                HELLO, b"SSH-2.0-x\\r\\n",
            )],
            protocol_elsewhere=[at(8080, data) for data in (b"GET /\\r\\n", b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\\r\\n")],
            after_greeting=at(25, head(HOST))[1:],
            second=[at(80, data + head("Host: evil.test"))[1:] for data in (
                head(HOST, first="GET /one HTTP/1.1"),
                head(HOST, CHUNKED, first="POST /two HTTP/1.1") + b"0\\r\\n\\r\\n",
                head(HOST, "Content-Length: 2", first="POST /three HTTP/1.1") + b"hi",
            )],
            chunks=at(80, head(HOST, CHUNKED, first="POST /four HTTP/1.1") + b"4;x=y\\r\\nWiki\\r\\n0\\r\\n\\r\\n")[1:],
        )
        tell(
            proxied=proxy(get("example.org", "http://example.org/six", CLOSE))[0],
            connected=proxy(CONNECT, HELLO),
            inner=[refused(running, lambda data=data: proxy(CONNECT, data))[1:]
                for data in (EVIL, head("Host: evil.test"))],
            blocked=refused(running, lambda: proxy(BLOCKED + get("example.org"))[0]),
            whole=[refused(running, lambda url=url, host=host: proxy(get(host, url))[0]) for url, host in (
                ("http://evil.test/", "evil.test"), ("http://example.org/", "evil.test"), ("http://127.1/", "127.1"),
                ("http://169.254.169.254/", "169.254.169.254"), ("http://0x7f000001/", "0x7f000001"),
                ("http://[::ffff:127.0.0.1]/", "[::ffff:127.0.0.1]"),
            )],
            several=proxy(get("example.org", "http://example.org/7") + get("evil.test", "http://evil.test/"))[0],
            socks_refused=[refused(running, lambda host=host, command=command: proxy(socks(host, 80, command))[0][2:4])
                for host, command in (("evil.test", 1), ("2130706433", 1), ("10.0.0.1", 1), ("example.org", 3))],
        )
        with inside.to_proxy() as made:
            made.sendall(socks("example.org", 25))
            answer = b""
            while len(answer) < 2 + 10 + 11: answer += made.recv(100)
            tell(socks=[answer[:4].hex(), answer[12:].decode()])
        tell(touched=evil.connections, paths=[each["path"] for each in pages.requests])
    for mode in ("allow", "none"):
        with gate(inside, mode=mode) as running:
            tell(**{mode: [
                refused(running, lambda: inside.say("example.org", 80, b"")),
                refused(running, lambda: inside.say("93.184.215.14", 80, b"")),
                refused(running, lambda: proxy(CONNECT)[0][:12]),
            ]})
"""  # fmt: skip


def test_what_is_not_permitted_is_refused_and_seen() -> None:
    answer = ground.run(REFUSED)
    assert answer["sni"] == [
        ["reset", "evil.test:443 tls"],
        ["reset", "evil.test:443 tls"],
        ["reset", "other.test:443 tls"],  # permitted at another port
    ]
    assert answer["again"] == ["example.org:443 protocol"]
    assert answer["host"] == [
        ["reset", "evil.test:80 host"],
        ["reset", "other.test:80 host"],  # permitted for itself, but not on this connection
        ["reset", "example.org:81:80 host"],
        ["reset", "example.org:80 host"],
    ]
    assert answer["hidden"] == [["reset", "evil.test:8080 host"]] * 2
    assert answer["protocol"] == [["reset", "example.org:80 protocol"]] * 13
    assert answer["protocol_elsewhere"] == [["reset", "example.org:8080 protocol"]] * 2
    assert answer["after_greeting"] == ["example.org:25 protocol"]
    assert answer["second"] == [["evil.test:80 host"]] * 3
    assert answer["chunks"] == ["example.org:80 protocol"]
    assert '"path": "/six"' in answer["proxied"]
    assert "200 Connection established" in answer["connected"][0]
    assert answer["connected"][1].startswith("heard")
    assert answer["inner"] == [["evil.test:443 tls"], ["evil.test:443 host"]]
    assert answer["blocked"][0].startswith("HTTP/1.1 403 ")
    assert answer["blocked"][0].count("HTTP/1.1") == 1  # nothing after a refusal is read
    assert "network: blocked evil.test:443 (policy); allowed are nothing" in answer["blocked"][0]
    assert answer["blocked"][1:] == ["evil.test:443 policy"]
    assert all(found[0].startswith("HTTP/1.1 403 ") for found in answer["whole"])
    assert [found[1] for found in answer["whole"]] == [
        "evil.test:80 policy",
        "evil.test:80 host",
        "127.1:None policy",
        "169.254.169.254:80 private",
        "0x7f000001:None policy",
        "127.0.0.1:80 private",
    ]
    assert [part[:3] for part in answer["several"].split("HTTP/1.1 ")[1:]] == ["200", "403"]
    assert answer["socks_refused"] == [
        ["\x05\x02", "evil.test:80 policy"],
        ["\x05\x02", "2130706433:80 policy"],
        ["\x05\x02", "10.0.0.1:80 private"],
        ["\x05\x07", "example.org:80 protocol"],
    ]
    assert answer["socks"] == ["05000500", "220 ready\r\n"]
    assert answer["touched"] == 0
    # The head of /four was sound: its server may have read it before the connection was reset.
    assert [path for path in answer["paths"] if path != "/four"] == ["/one", "/two", "/three", "/six", "/7"]
    assert answer["allow"] == [
        ["no name", "example.org:None policy"],
        ["reset", "93.184.215.14:80 policy"],
        ["HTTP/1.1 403", "example.org:443 policy"],
    ]
    assert answer["none"] == [
        ["no name", "example.org:None no network"],
        ["reset", "93.184.215.14:80 no network"],
        ["HTTP/1.1 403", "example.org:443 no network"],
    ]


LIMITS = START + """
import contextlib
from corral.network.settings import GateLimits
with window() as inside:
    pages = serve(web, "93.184.215.14", 80, name="example.org")
    serve(banner, "93.184.215.14", 25)
    serve(banner, "93.184.215.15", 25, name="mail.test")
    def usage(running): return running.ask(op="usage")
    def wait_until(true):
        until = time.monotonic() + 20
        while not true() and time.monotonic() < until: time.sleep(0.01)
        return true()

    # A policy that changes while connections live.
    with gate(inside, mode="allow", rules=("example.org", "mail.test")) as running:
        one, two = inside.connect("example.org", 25), inside.connect("mail.test", 25)
        tell(greetings=[made.recv(100).decode() for made in (one, two)])
        tell(changed=running.change(mode="allow", rules=("mail.test",)))
        two.sendall(b"still here")
        tell(after_change=[hear(one, b""), two.recv(100).decode(), inside.say("example.org", 25, b"")])
        tell(bad=[running.ask(op="settings"), running.ask(op="dance"), running.ask(nothing=1)])
        tell(closed=running.change(mode="none"), two=hear(two, b""),
            left=not wait_until(lambda: usage(running)["connections"] == 0))

    # Connections at the same time, and attempts.
    limits = GateLimits(connections=5, attempts_per_second=20.0)
    with gate(inside, mode="allow", rules=("example.org",), limits=limits) as running:
        address = inside.resolve("example.org")
        held = [inside.connect(address, 25) for _ in range(5)]
        for made in held: made.recv(100)
        over = refused(running, lambda: inside.say(address, 25, b""))
        for made in held: made.close()
        tell(over=over, freed=wait_until(lambda: usage(running)["connections"] == 0))
        before = running.count()
        for _ in range(2_000):
            with contextlib.suppress(ConnectionError), inside.make_socket() as made: made.connect((address, 25))
        tell(refused=wait_until(lambda: running.count() - before > 1_500), alive=usage(running)["ok"],
            rules=sorted({rule for _, _, rule, _ in running.denied(before)}), passed=len(pages.requests))

    # All bytes together.
    with gate(inside, mode="allow", rules=("example.org",), limits=GateLimits(total_bytes=100_000)) as running:
        idle = inside.connect("example.org", 25)
        idle.recv(100)
        tell(large=refused(running, lambda: len(inside.say("example.org", 80, get("example.org", "/bytes?n=5000000")))),
            idle=hear(idle, b""), next=refused(running, lambda: inside.say("example.org", 80, get("example.org")))[1:])

    # A slow reader, slow heads, and idle connections take no memory to speak of.
    with gate(inside, mode="allow", rules=("example.org",), limits=GateLimits(attempts_per_second=1000)) as running:
        def memory():
            return int(next(line for line in open(f"/proc/{running.process.pid}/status") if "VmRSS" in line).split()[1])
        inside.say("example.org", 80, get("example.org", "/", CLOSE))
        at_first = memory()
        slow = [inside.connect("example.org", 80) for _ in range(20)]
        for made in slow: made.sendall(get("example.org", "/bytes?n=20000000"))
        partial = [inside.connect("example.org", 80) for _ in range(100)]
        for made in partial: made.sendall(b"GET / HTTP/1.1\\r\\nHost: example.org\\r\\nX: ")
        idle = [inside.connect("example.org", 25) for _ in range(100)]
        for made in idle: made.recv(100)
        time.sleep(0.5)
        tell(grown=memory() - at_first, still=inside.say("example.org", 80, get("example.org", "/", CLOSE))[:12])
        for made in partial: made.sendall(b"y\\r\\nConnection: close\\r\\n\\r\\n")
        tell(partial=sum(hear(made, b"").startswith("HTTP/1.1 200") for made in partial))
        for made in slow + idle: made.close()
        tell(gone=wait_until(lambda: usage(running)["connections"] == 0))

    # A second gate of the same sandbox: what has passed is remembered. Root's gate is nobody.
    with gate(inside, uid=12399 if os.geteuid() == 0 else None, mode="open") as running:
        status = open(f"/proc/{running.process.pid}/status").read() if os.geteuid() == 0 else "NoNewPrivs:\\t1"
        tell(privileges=[line.split()[1:] for line in status.splitlines()
            if line.startswith(("NoNewPrivs", "CapEff", "CapPrm", "CapInh", "Uid", "Groups"))],
            open=inside.say("example.org", 80, get("example.org", "/", CLOSE))[:12])
        running.control.close()
        tell(ended=running.process.wait(20))
"""  # fmt: skip


def test_limits_hold_and_a_new_policy_holds_at_once() -> None:
    answer = ground.run(LIMITS)
    assert answer["greetings"] == ["220 ready\r\n"] * 2
    assert answer["changed"] == {"ok": True}
    assert answer["after_change"] == ["reset", "still here", "no name"]
    assert [said["ok"] for said in answer["bad"]] == [False] * 3
    assert (answer["closed"], answer["two"], answer["left"]) == ({"ok": True}, "reset", False)
    assert answer["over"] == ["reset", "example.org:25 connections"]
    assert answer["freed"]
    assert answer["refused"]
    assert answer["alive"]
    assert "rate" in answer["rules"]
    assert answer["large"][0] <= 100_000
    assert answer["large"][1:] == ["example.org:80 bytes"]
    assert answer["idle"] == "reset"
    assert answer["next"] == ["example.org:80 bytes"]
    assert answer["grown"] < 20 * 1024
    assert answer["still"] == "HTTP/1.1 200"
    assert answer["partial"] == 100
    assert answer["gone"]
    assert answer["privileges"] in ([["12399"] * 4, [], *[["0" * 16]] * 3, ["1"]], [["1"]])
    assert answer["open"] == "HTTP/1.1 200"
    assert answer["ended"] == 0


STALLED = (
    START
    + """
with window() as inside:
    serve(banner, "93.184.215.14", 25, name="example.org")
    floods = [serve(flood, "93.184.215.14", port) for port in (7000, 7001)]
    with gate(inside, mode="allow", rules=("example.org",)) as running:
        address = inside.resolve("example.org")
        def stall(port, server):
            # How much waits somewhere, for a program that has read fast and then stops.
            made = inside.make_socket()
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            made.connect((address, port))
            got, buffer = 0, bytearray(1 << 20)
            while got < 64 << 20: got += made.recv_into(buffer)
            before = None
            while before != server.sent:
                before = server.sent
                time.sleep(0.5)
            return made, server.sent - got
        first, fast = stall(7000, floods[0])
        held = [inside.connect(address, 25) for _ in range(20)]
        for made in held: made.recv(100)
        second, slow = stall(7001, floods[1])
        tell(fast=fast, slow=slow)
"""
)


def test_what_is_not_read_waits_outside_but_for_a_few_connections() -> None:
    """What waits in the kernel is counted for the whole machine."""
    answer = ground.run(STALLED)
    assert answer["slow"] < 2 << 20, answer
    assert answer["fast"] > answer["slow"]  # for which the way may be long


SEARCHED = (
    START
    + """
from pathlib import Path
asked = []
def answer(name, kind):
    asked.append(name)
    return Answer(("93.184.215.66",)) if name.endswith(".corp.test") else None
Path("/etc/resolv.conf").write_text("nameserver 127.0.0.1\\nsearch corp.test\\noptions timeout:1 attempts:1\\n")
with GROUND.answer_names(answer), window() as inside:
    with gate(inside, mode="allow", rules=("*.example.org", "single")) as running:
        tell(found=[inside.look_up(name) for name in ("a.example.org", "single")], asked=sorted(set(asked)))
"""
)


def test_a_rule_is_for_a_whole_name() -> None:
    """The host searches domains for what it does not find: what it would find there, nobody has permitted."""
    answer = ground.run(SEARCHED)
    assert answer == {"found": [[3, []]] * 2, "asked": ["a.example.org", "single"]}
