"""Probes for the network: the host's loopback, other networks, and the kernel's view of interfaces.

A probe of "no route" first proves that its namespace has no interface but loopback. If it has another one, that is
the finding, and nothing is sent.
"""

from __future__ import annotations

import functools

from corral.testing.hostile.probe import Probe

_probe = functools.partial(Probe, area="network")
_OWN_NETWORK = "each sandbox has its own network namespace with loopback alone"

INTERFACES = _probe("find-an-interface-or-a-route", "escape", _OWN_NETWORK, """
only_loopback()
if names := [name for _, name in socket.if_nameindex() if name != "lo"]:
    breached(f"interfaces {names}")
routes = [line.split()[0] for line in read("/proc/net/route").decode().splitlines()[1:]]
if set(routes) - {"lo"}:
    breached(f"routes through {routes}")
neighbours = read("/proc/net/arp").decode().splitlines()[1:]
breached(f"neighbours {neighbours}") if neighbours else held("lo, no route, no neighbour")
""")  # fmt: skip

_CONNECT = """
def connect(family, kind, address):
    with socket.socket(family, kind) as sock:
        sock.settimeout(2)
        sock.connect(address)
    return f"connected to {address}"
"""

HOST_LOOPBACK = _probe(
    "connect-to-the-hosts-loopback", "escape", _OWN_NETWORK, _CONNECT + """
attempts = {f"4 {host}": (2, 1, (host, T["tcp_port"])) for host in ("127.0.0.1", "127.0.0.2", "localhost", "0.0.0.0")}
attempts["6"] = (10, 1, ("::1", T["tcp_port"]))
attempts["mapped"] = (10, 1, ("::ffff:127.0.0.1", T["tcp_port"]))
try_each(connect, attempts, (errno.ECONNREFUSED, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EHOSTUNREACH,
                             errno.EPERM, errno.EAFNOSUPPORT))
""")  # fmt: skip

HOST_DATAGRAMS = _probe("send-datagrams-to-the-hosts-loopback", "escape", _OWN_NETWORK, """
for host in ("127.0.0.1", "127.0.0.53"):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        can(sock.sendto, b"canary", (host, T["udp_port"]))
held("sent on this namespace's loopback; the host counts what arrived")
""")  # fmt: skip

ABSTRACT = _probe(
    "connect-to-the-hosts-abstract-sockets", "escape", "abstract names belong to the network namespace",
    _CONNECT + """
listed = [line.split()[-1] for line in read("/proc/net/unix", 1 << 20).decode().splitlines()[1:] if "@" in line]
if any(T["abstract"] in name or "dbus" in name or "X11" in name for name in listed):
    breached(f"listed: {listed[:5]}")
name = "\\0" + T["abstract"]
try_each(connect, {"stream": (socket.AF_UNIX, 1, name), "datagram": (socket.AF_UNIX, 2, name)},
         (errno.ECONNREFUSED, errno.EPERM))
""")  # fmt: skip

_NO_WAY = "(errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT)"


def _unreachable(name: str, *addresses: tuple[int, int, tuple[str, int]]) -> Probe:
    """Connect to addresses, each given with the numbers of its socket's family and type."""
    return _probe(name, "escape", _OWN_NETWORK, f"""
only_loopback()
{_CONNECT}
try_each(connect, {addresses!r}, {_NO_WAY})
""")  # fmt: skip


METADATA = _unreachable(
    "ask-the-clouds-metadata-service", (2, 1, ("169.254.169.254", 80)), (2, 1, ("169.254.170.2", 80)),
    (10, 1, ("fd00:ec2::254", 80)), (2, 1, ("100.100.100.200", 80)),
)  # fmt: skip
PRIVATE = _unreachable(
    "reach-private-and-documentation-addresses", (2, 1, ("10.0.0.1", 80)), (2, 1, ("172.17.0.1", 2375)),
    (2, 1, ("192.168.1.1", 80)), (2, 1, ("192.0.2.1", 443)), (10, 1, ("2001:db8::1", 443)),
    (2, 2, ("198.51.100.1", 53)),
)  # fmt: skip

NAMES = _probe("tunnel-through-name-resolution", "escape", _OWN_NETWORK, """
only_loopback()
try:
    breached(f"resolved: {socket.getaddrinfo('canary.corral.invalid', 80)}")
except socket.gaierror as error:
    pass
lines = peek("/etc/resolv.conf").decode().splitlines()
servers = [line.split()[1] for line in lines if line.startswith("nameserver")]
question = b"\\6canary\\6corral\\7invalid\\0"
def ask(server, kind):
    with socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(2)
        sock.connect((server, 53))
        sock.send(struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + question + struct.pack(">2H", kind, 1))
        answer = sock.recv(4096)
    counts = struct.unpack_from(">6H", answer.ljust(12, b"\\0"))
    # A resolver that knows no name but those that are permitted says so, and brings nothing in.
    if counts[1] & 0xF not in (3, 5) or any(counts[3:]) or len(answer) > 12 + len(question) + 4 + 11:
        return f"{server} answered {answer[:60]}"
    raise OSError(errno.ECONNREFUSED, "no such name")
attempts = {f"{server} {kind}": (server, kind) for server in (*servers, "192.0.2.53") for kind in (1, 16, 28)}
try_each(ask, attempts, (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.EPERM))
""", timeout=30)  # fmt: skip

BROADCAST = _probe("send-to-everybody", "escape", _OWN_NETWORK, f"""
only_loopback()
def send(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.sendto(b"x", address)
    return f"sent to {{address}}"
try_each(send, {{"broadcast": (2, ("255.255.255.255", 9)), "multicast": (2, ("224.0.0.251", 5353)),
                "link": (10, ("fe80::1", 9))}}, (*{_NO_WAY}, errno.EINVAL))
""")  # fmt: skip

CONFIGURE = _probe("make-an-interface-or-a-route", "escape", "no CAP_NET_ADMIN over the namespace", """
def speak(kind, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.settimeout(2)
        sock.bind((0, 0))
        sock.send(struct.pack("=IHHII", 16 + len(body), kind, 0x605, 1, 0) + body)
        answer = sock.recv(4096)
        code = struct.unpack_from("=i", answer, 16)[0]
        if code < 0:
            raise OSError(-code, "netlink")
        return f"answer {code}"
def attribute(number, data):
    return struct.pack("=HH", 4 + len(data), number) + data + bytes(-len(data) % 4)
def flags():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sh14x", b"lo", 0))
    return "loopback taken down"
information = bytes(16)
try_all({
    "dummy": lambda: speak(16, information + attribute(3, b"d0\\0") + attribute(18, attribute(1, b"dummy\\0"))),
    "veth": lambda: speak(16, information + attribute(3, b"v0\\0") + attribute(18, attribute(1, b"veth\\0"))),
    "route": lambda: speak(24, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0) + attribute(4, struct.pack("=i",
    1))),
    "flags": flags,
})
""")  # fmt: skip
