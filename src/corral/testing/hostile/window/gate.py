"""Probes against the gate itself, and against what leads to it: its process, its sockets, the kernel's redirection."""

from __future__ import annotations

from corral.testing.hostile.window.gates import look_at_gates
from corral.testing.hostile.window.stage import NEIGHBOURS_POLICY
from corral.testing.hostile.window.tools import opening, probe

_OUTSIDE = "the gate is a process of the host; inside there is only the other end of its connections"
_NO_ADMIN = "no CAP_NET_ADMIN over the namespace"

PROCESS = probe("find-the-gates-process", _OUTSIDE, r"""
works()
for pid in pids():
    for name in ("cmdline", "comm", "environ", "maps"):
        if b"corral-gate" in peek(f"/proc/{pid}/{name}"):
            breached(f"process {pid} is visible: {peek(f'/proc/{pid}/cmdline')!r}")
names = [line.split()[-1] for line in peek("/proc/net/unix", 1 << 20).decode().splitlines()[1:] if
    len(line.split()) > 7]
if named := [name for name in names if name.startswith("@") and "victim" not in name]:
    breached(f"sockets with names: {named[:5]}")
found = []
for pid in pids():
    for folder in ("fd", "task", "map_files", "root", "cwd"):
        try:
            for name in os.listdir(f"/proc/{pid}/{folder}"):
                goal = os.readlink(f"/proc/{pid}/{folder}/{name}") if folder == "fd" else ""
                if pid != os.getpid() and ("memfd" in goal or "denials" in goal):
                    found.append((pid, goal))
        except OSError:
            pass
if found:
    breached(f"descriptors of the gate: {found}")
attempts = {"pidfd of 1": lambda: kernel("pidfd_getfd", os.pidfd_open(1), 3, 0)}
for pid in (1, os.getppid()):
    attempts[f"trace {pid}"] = lambda pid=pid: kernel("ptrace", 16, pid, 0, 0)
    attempts[f"memory of {pid}"] = lambda pid=pid: open(f"/proc/{pid}/mem", "rb").close() if pid == 1 else None
try_all(attempts, NOT_THERE)
""", after=look_at_gates)  # fmt: skip

OTHER_DOORS = probe("look-for-other-doors-of-the-gate", _OUTSIDE, r"""
works()
listening = []
for table in ("/proc/net/tcp", "/proc/net/tcp6", "/proc/net/udp", "/proc/net/udp6"):
    for line in peek(table, 1 << 20).decode().splitlines()[1:]:
        where, state = line.split()[1], line.split()[3]
        if state == "0A" or "udp" in table:
            listening.append((table, where))
ports = {int(where.split(":")[1], 16) for _, where in listening}
if unknown := ports - {53, *range(PROXY[1], PROXY[1] + 16)}:
    breached(f"more listens inside than the window's own: {unknown} of {listening}")
answered = []
for port in range(1, 2048):
    for host in ("127.0.0.1", "127.77.0.1"):
        with socket.socket() as sock:
            sock.settimeout(0.2)
            if (host, port) != PROXY and can(sock.connect, (host, port)):
                answered.append((host, port))
if answered:
    breached(f"open: {answered}")
answers = {}
for what in (b'{"op":"settings"}', b'{"op":"usage"}', b"\0\0\0\x0f" + b'{"op":"settings"}'):
    answers[what] = talk(PROXY, what + b"\r\n\r\n")
refused({name: answer for name, answer in answers.items() if
    answer and b"ok" in answer} or {"the gate's own words": None})
""", timeout=60)  # fmt: skip

TAKE_OVER = probe("take-over-the-resolver-and-the-listener",
    "their addresses are taken, by sockets that don't share", r"""
works()
names = {"resolver": (socket.SOCK_DGRAM, RESOLVER), "listener": (socket.SOCK_STREAM, PROXY)}
def take(kind, address, host, options):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as sock:
        for option in options:
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
        sock.bind((host, address[1]))
        if kind == socket.SOCK_STREAM:
            sock.listen()
    return "taken"
cases = {}
for name, (kind, address) in names.items():
    for host in (address[0], "0.0.0.0", "::"):
        for options in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)):
            cases[f"{name} {host} {options}"] = (kind, address, host, options)
taken = []
for name, case in cases.items():
    try:
        take(*case)
        taken.append(name)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES, errno.EPERM, errno.EAFNOSUPPORT):
            breached(f"{name}: {error}")
works()
mine = [name for name in taken if "127.77" in name]
if mine:
    breached(f"taken: {mine}")
held(f"{len(cases) - len(taken)} of {len(cases)} refused, and the window still works")
""")  # fmt: skip

REDIRECTION = probe("change-what-leads-to-the-gate", _NO_ADMIN, r"""
works()
def speak(family, kind, body, flags=0x605):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family) as sock:
        sock.settimeout(2)
        sock.bind((0, 0))
        sock.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
        code = struct.unpack_from("=i", sock.recv(8192), 16)[0]
        if code < 0:
            raise OSError(-code, "netlink")
        return f"answer {code}"
def table(kind):
    begin = struct.pack("=IHHIIBBH", 20, 16, 1, 0, 0, 0, 0, 0xA00)
    body = struct.pack("=BBH", 2, 0, 0) + struct.pack("=HH", 8, 1) + b"x\0\0\0"
    middle = struct.pack("=IHHII", 16 + len(body), 0xA00 | kind, 0x605, 1, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as sock:
        sock.settimeout(2)
        sock.send(begin + middle + struct.pack("=IHHIIBBH", 20, 17, 1, 2, 0, 0, 0, 0xA00))
        code = struct.unpack_from("=i", sock.recv(8192), 16)[0]
        if code < 0:
            raise OSError(-code, "netlink")
    return "changed"
def attribute(number, data):
    return struct.pack("=HH", 4 + len(data), number) + data + bytes(-len(data) % 4)
def option(level, number, value):
    with socket.socket() as sock:
        sock.setsockopt(level, number, value)
    return "set"
def sysctl(name, value):
    with open(f"/proc/sys/net/{name}", "w") as file:
        file.write(value)
    return "written"
route = struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0) + attribute(4, struct.pack("=i", 1))
try_all({
    "a table": lambda: table(0), "no tables": lambda: table(2), "a rule": lambda: speak(0, 32,
    struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 0, 0, 1, 0)),
    "no rule": lambda: speak(0, 33, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 0, 0, 1, 0), 5),
    "a route": lambda: speak(0, 24, route), "no route": lambda: speak(0, 25, route, 5),
    "transparent": lambda: option(socket.SOL_IP, 19, 1), "a mark": lambda: option(socket.SOL_SOCKET, 36, 1),
    "forwarding": lambda: sysctl("ipv4/ip_forward", "1"), "ports": lambda: sysctl("ipv4/ip_unprivileged_port_start",
    "0"),
    "local routes": lambda: sysctl("ipv4/conf/all/route_localnet", "1"),
    "iptables": lambda: kernel("setsockopt" if False else 54 if MACHINE == "x86_64" else 208,
    socket.socket().fileno(), 0, 64, bytes(64), 64),
}, (*REFUSED, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.ENOPROTOOPT, errno.EROFS, errno.ENOENT))
""")  # fmt: skip

_LOOK_UP = "import socket; socket.getaddrinfo('neighbour.test', 80)"
NEIGHBOUR = probe("use-the-neighbours-window", "each sandbox has its own gate, sockets and addresses", r"""
works()
answers = {"CONNECT": connect("neighbour.test:80", GET % b""), "SOCKS": socks("neighbour.test", 80, GET % b"")}
code, found = look_up("neighbour.test")
if found:
    breached(f"resolved: {found}")
own = struct.unpack("!I", socket.inet_aton(look_up("good.test")[1][0]))[0]
for number in (*range(0xC6120001, 0xC6120014), *range(own + 1, own + 20)):
    # What stands for a name in the neighbour stands for nothing here, or for another.
    host = socket.inet_ntoa(struct.pack("!I", number))
    answers[f"stand-in {host}"] = talk((host, 443), hello("neighbour.test"), seconds=0.3)
hold()
refused(answers)
""", neighbour_code=_LOOK_UP, victim=True, severity="lateral")  # fmt: skip

open_neighbour = opening(*NEIGHBOURS_POLICY)
