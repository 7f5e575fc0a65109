"""Probes for socket families, types, protocols and options: kernel code that no program here needs."""

from __future__ import annotations

from corral.testing.hostile.probe import Probe

FAMILIES = Probe(
    "open-odd-socket-families", "kernel", "escape", "seccomp on socket: UNIX, INET, INET6 and NETLINK_ROUTE only",
    """
names = {"AX25": 3, "IPX": 4, "X25": 9, "PACKET": 17, "RDS": 21, "PPPOX": 24, "LLC": 26, "CAN": 29, "TIPC": 30,
         "BLUETOOTH": 31, "RXRPC": 33, "PHONET": 35, "IEEE802154": 36, "CAIF": 37, "ALG": 38, "NFC": 39, "VSOCK": 40,
         "KCM": 41, "QIPCRTR": 42, "SMC": 43, "XDP": 44, "MCTP": 45}
def attempt(family, kind):
    socket.socket(family, kind, 0).close()
    return f"family {family}"
try_all({f"{name} {kind}": lambda f=family, k=kind: attempt(f, k) for name, family in names.items() for kind in (1, 2,
    3, 5)},
        (errno.EAFNOSUPPORT, errno.EPERM, errno.EACCES))
""",
)  # fmt: skip

RAW_SOCKETS = Probe(
    "open-raw-sockets", "kernel", "escape", "seccomp on socket types and protocols",
    """
def attempt(family, kind, protocol):
    socket.socket(family, kind, protocol).close()
    return "a socket"
try_all({"raw icmp": lambda: attempt(2, 3, 1), "raw": lambda: attempt(2, 3, 255), "raw 6": lambda: attempt(10, 3, 58),
         "packet type": lambda: attempt(2, 10, 0), "sctp": lambda: attempt(2, 1, 132), "mptcp": lambda: attempt(2, 1,
         262),
         "dccp": lambda: attempt(2, 6, 33), "udplite": lambda: attempt(2, 2, 136), "seqpacket": lambda: attempt(2, 5,
         0)},
        (errno.EPERM, errno.EACCES, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT))
""",
)  # fmt: skip

NETLINK = Probe(
    "speak-to-kernel-subsystems-by-netlink", "kernel", "escape", "seccomp on netlink protocols: ROUTE only",
    """
names = {"SOCK_DIAG": 4, "NFLOG": 5, "XFRM": 6, "SELINUX": 7, "ISCSI": 8, "AUDIT": 9, "FIB_LOOKUP": 10, "CONNECTOR": 11,
         "NETFILTER": 12, "DNRTMSG": 14, "KOBJECT_UEVENT": 15, "GENERIC": 16, "SCSITRANSPORT": 18, "RDMA": 20,
         "CRYPTO": 21}
def attempt(protocol):
    socket.socket(16, 3, protocol).close()
    return "a socket"
try_all({name: lambda p=protocol: attempt(p) for name, protocol in names.items()},
        (errno.EPROTONOSUPPORT, errno.EPERM, errno.EACCES))
""",
)  # fmt: skip

SOCKET_OPTIONS = Probe(
    "load-modules-by-socket-options", "kernel", "escape", "seccomp on setsockopt and ioctl",
    """
def option(family, level, name, value):
    with socket.socket(family, 1) as sock:
        sock.setsockopt(level, name, value)
    return "accepted"
def request(number):
    with socket.socket(2, 2) as sock:
        fcntl.ioctl(sock, number, bytes(64))
    return "accepted"
try_all({"tls": lambda: option(2, 6, 31, b"tls"), "iptables": lambda: option(2, 0, 64, bytes(100)),
         "ip6tables": lambda: option(10, 41, 64, bytes(100)), "bridge": lambda: request(0x89A0),
         "vlan": lambda: request(0x8983)},
        (errno.ENOPROTOOPT, errno.EPERM, errno.EACCES))
""",
)  # fmt: skip

PROBES = (FAMILIES, RAW_SOCKETS, NETLINK, SOCKET_OPTIONS)
