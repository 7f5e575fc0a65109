"""Probes for the network: the host's loopback, what lies beyond it, and the kernel's view of interfaces.

A probe of "no route" first proves that its namespace has no interface but loopback. If it has another one, that is
the finding, and nothing is sent.
"""

from __future__ import annotations

from corral.testing.hostile.probe import Probe

_OWN_NETWORK = "a network namespace of its own with loopback alone"

INTERFACES = Probe(
    "find-an-interface-or-a-route", "network", "escape", _OWN_NETWORK,
    """
only_loopback()
if names := [name for _, name in socket.if_nameindex() if name != "lo"]:
    breached(f"interfaces {names}")
routes = [line.split()[0] for line in read("/proc/net/route").decode().splitlines()[1:]]
if set(routes) - {"lo"}:
    breached(f"routes through {routes}")
neighbours = read("/proc/net/arp").decode().splitlines()[1:]
breached(f"neighbours {neighbours}") if neighbours else held("lo, no route, no neighbour")
""",
)  # fmt: skip

HOST_LOOPBACK = Probe(
    "connect-to-the-hosts-loopback", "network", "escape", _OWN_NETWORK,
    """
def attempt(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(2)
        sock.connect(address)
    return f"connected to {address}"
attempts = {f"4 {host}": lambda h=host: attempt(socket.AF_INET, (h, T["tcp_port"])) for host in ("127.0.0.1",
    "127.0.0.2", "localhost", "0.0.0.0")}
attempts["6"] = lambda: attempt(socket.AF_INET6, ("::1", T["tcp_port"]))
attempts["mapped"] = lambda: attempt(socket.AF_INET6, ("::ffff:127.0.0.1", T["tcp_port"]))
try_all(attempts, (errno.ECONNREFUSED, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EHOSTUNREACH, errno.EPERM,
    errno.EAFNOSUPPORT))
""",
)  # fmt: skip

HOST_DATAGRAMS = Probe(
    "send-datagrams-to-the-hosts-loopback", "network", "escape", _OWN_NETWORK,
    """
for host in ("127.0.0.1", "127.0.0.53"):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.sendto(b"canary", (host, T["udp_port"]))
        except OSError:
            pass
held("sent on this namespace's loopback; the host counts what arrived")
""",
)  # fmt: skip

ABSTRACT = Probe(
    "connect-to-the-hosts-abstract-sockets", "network", "escape", "abstract names belong to the network namespace",
    """
def attempt(kind):
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.settimeout(2)
        sock.connect("\\0" + T["abstract"])
    return "connected"
listed = [line.split()[-1] for line in read("/proc/net/unix", 1 << 20).decode().splitlines()[1:] if "@" in line]
if any(T["abstract"] in name or "dbus" in name or "X11" in name for name in listed):
    breached(f"listed: {listed[:5]}")
try_all({"stream": lambda: attempt(socket.SOCK_STREAM), "datagram": lambda: attempt(socket.SOCK_DGRAM)},
    (errno.ECONNREFUSED, errno.EPERM))
""",
)  # fmt: skip

_NO_WAY = "(errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT)"


def _unreachable(name: str, addresses: str) -> Probe:
    return Probe(
        name, "network", "escape", _OWN_NETWORK,
        f"""
only_loopback()
def attempt(family, kind, address):
    with socket.socket(family, kind) as sock:
        sock.settimeout(1)
        sock.connect(address)
    return f"connected to {{address}}"
try_all({{str(address): lambda f=family, k=kind, a=address: attempt(f, k, a) for family, kind,
    address in {addresses}}}, {_NO_WAY})
""",
    )  # fmt: skip


METADATA = _unreachable(
    "ask-the-clouds-metadata-service",
    '((2, 1, ("169.254.169.254", 80)), (2, 1, ("169.254.170.2", 80)), (10, 1, ("fd00:ec2::254", 80)),'
    ' (2, 1, ("100.100.100.200", 80)))',
)
PRIVATE = _unreachable(
    "reach-private-and-documentation-addresses",
    '((2, 1, ("10.0.0.1", 80)), (2, 1, ("172.17.0.1", 2375)), (2, 1, ("192.168.1.1", 80)), (2, 1, ("192.0.2.1", 443)),'
    ' (10, 1, ("2001:db8::1", 443)), (2, 2, ("198.51.100.1", 53)))',
)

NAMES = Probe(
    "tunnel-through-name-resolution", "network", "escape", _OWN_NETWORK,
    """
only_loopback()
try:
    breached(f"resolved: {socket.getaddrinfo('canary.corral.invalid', 80)}")
except socket.gaierror as error:
    pass
servers = []
try:
    servers = [line.split()[1] for line in read("/etc/resolv.conf").decode().splitlines()
        if line.startswith("nameserver")]
except OSError:
    pass
def attempt(server):
    with socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(1)
        sock.connect((server, 53))
        sock.send(b"\\0" * 12)
        sock.recv(10)
    return f"{server} answered"
try_all({server: lambda s=server: attempt(s) for server in (*servers, "192.0.2.53")},
        (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.EPERM))
""",
    timeout=20,
)  # fmt: skip

BROADCAST = Probe(
    "send-to-everybody", "network", "escape", _OWN_NETWORK,
    f"""
only_loopback()
def attempt(family, address):
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.sendto(b"x", address)
    return f"sent to {{address}}"
try_all({{"broadcast": lambda: attempt(socket.AF_INET, ("255.255.255.255", 9)),
    "multicast": lambda: attempt(socket.AF_INET, ("224.0.0.251", 5353)),
         "link": lambda: attempt(socket.AF_INET6, ("fe80::1", 9))}}, ({_NO_WAY}) + (errno.EINVAL,))
""",
)  # fmt: skip

CONFIGURE = Probe(
    "make-an-interface-or-a-route", "network", "escape", "no CAP_NET_ADMIN over the namespace",
    """
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
""",
)  # fmt: skip
