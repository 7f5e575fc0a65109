"""Probes for the caps of a window, and for its policy while connections live."""

from __future__ import annotations

import asyncio

from corral.errors import CorralError
from corral.spec import NetworkLimits, NetworkPolicy
from corral.testing.hostile.probe import Finding, Scene, breached, held, unproven
from corral.testing.hostile.window.gates import find_gates, resident_bytes
from corral.testing.hostile.window.stage import POLICY
from corral.testing.hostile.window.tools import DIAL, opening, probe

_PATIENCE_SECONDS = 20.0
_MOST_GATE_BYTES = 256 << 20
_MOST_DENIAL_BYTES = 4 << 20


async def _look_at_denials(scene: Scene) -> Finding | None:
    """What 10,000 attempts leave behind is bounded, and the rest of the sandbox's life has not suffered."""
    denied = scene.sandbox.primitives.denials_since(0)
    size = sum(len(denial.host) + 64 for denial in denied)
    if size > _MOST_DENIAL_BYTES:
        return breached(f"{len(denied)} denials were kept, {size} bytes")
    counted = sum(denial.count for denial in denied if denial.rule == "rate")
    return None if counted else breached("no denial says that there were too many attempts")


MANY = probe("attempt-ten-thousand-times", "attempts are counted, and beyond the rate refused", r"""
works()
passed_count, lock, turns = 0, threading.Lock(), iter(range(10_000))
def try_them():
    global passed_count
    for turn in turns:
        kind = turn % 4
        answer = None
        if kind == 0:
            answer = talk(("good.test", 80), GET % b"many", seconds=5)
        elif kind == 1:
            answer = connect("good.test:80", GET % b"many", seconds=5)
        elif kind == 2:
            answer = talk((T["evil"], 80), GET % b"many", seconds=5)
        else:
            look_up(f"{turn}.evil.test", seconds=5) if turn % 16 == 3 else talk(PROXY, b"nonsense\r\n\r\n", seconds=5)
        if passed(answer) and b"found" in answer:
            with lock:
                passed_count += 1
def safely():
    while True:
        try:
            try_them()
            return
        except (OSError, ValueError):
            pass
began = time.monotonic()
threads = [threading.Thread(target=safely) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
most = 10 * (20 + time.monotonic() - began)  # what a burst may have, and the rate since
if passed_count > most:
    breached(f"{passed_count} of 10000 went through, and at most {most:.0f} should have")
held(f"{passed_count} of 10000 went through in {time.monotonic() - began:.0f} s")
""", make=opening(*POLICY, limits=NetworkLimits(attempts_per_second=10.0)), after=_look_at_denials, timeout=90,
    severity="neighbour_dos")  # fmt: skip


async def _weigh_the_gate(scene: Scene) -> Finding | None:
    """What a program that does not read keeps waiting, the gate must not hold in memory."""
    heaviest = max((resident_bytes(pid) for pid in find_gates()), default=0)
    if not heaviest:
        return unproven("no process of a gate was found")
    return breached(f"a gate takes {heaviest >> 20} MiB") if heaviest > _MOST_GATE_BYTES else None


SLOW = probe("read-slowly-from-many-connections", "what is not read is not fetched: the gate holds little for each",
    r"""
works()
sockets = []
for turn in range(60):
    sock = dial("good.test", 80)
    sock.sendall(b"GET /bytes?n=33554432 HTTP/1.1\r\nHost: good.test\r\n\r\n")
    sockets.append(sock)
silent = [socket.create_connection(PROXY, timeout=10) for _ in range(60)]
for sock in silent[:30]:
    sock.sendall(b"GET http://good.test/ HTTP/1.1\r\nX: ")
time.sleep(2)
first = [sock.recv(100)[:12] for sock in sockets]
works()
held(f"{sum(piece == b'HTTP/1.1 200' for piece in first)} answers wait, and another connection works")
""", make=opening(*POLICY, roomy=True), after=_weigh_the_gate, timeout=60, severity="host_dos")  # fmt: skip

CONNECTIONS = probe("hold-more-connections-than-permitted", "connections are counted, and beyond the limit refused",
    r"""
sockets = []
for turn in range(120):
    try:
        sock = dial("good.test", 7000)
        sock.sendall(b"kept")
        sockets.append(sock)
    except OSError:
        pass
time.sleep(1)
alive = 0
for sock in sockets:
    sock.setblocking(False)
    try:
        alive += sock.recv(1) != b""
    except BlockingIOError:
        alive += 1
    except OSError:
        pass
if not alive:
    say("unproven", "no connection is open")
breached(f"{alive} are open, and 10 are permitted") if alive > 10 else held(f"{alive} of 120 are open")
""", make=opening(*POLICY, limits=NetworkLimits(connections=10, attempts_per_second=1000.0)), timeout=60,
    severity="host_dos")  # fmt: skip

VOLUME = probe("transfer-more-than-permitted", "bytes are counted in both directions, while the sandbox exists", r"""
total = 0
for turn in range(20):
    total += len(ask(b"bytes?n=1048576"))
if not total:
    say("unproven", "nothing came through")
breached(f"{total} bytes came, and 3 MB are permitted") if total > 4 << 20 else held(f"{total} bytes came")
""", make=opening(*POLICY, limits=NetworkLimits(total_bytes=3 << 20)), timeout=60,
    severity="neighbour_dos")  # fmt: skip

_KEEPER = r"""
import socket, sys, time
def alive(sock):
    try:
        sock.sendall(b"x")
        time.sleep(0.2)
        sock.sendall(b"x")
        sock.settimeout(0.5)
        return sock.recv(10) != b""
    except TimeoutError:
        return True
    except OSError:
        return False
direct, by_proxy = dial("good.test", 7000), tunnel("good.test", 7000)
other = dial("x.wild.test", 80)
for sock in (direct, by_proxy, other):
    sock.sendall(b"GET /k HTTP/1.1\r\nHost: x.wild.test\r\n\r\n") if sock is other else sock.sendall(b"kept")
other.recv(1000)
print("connected", flush=True)
sys.stdin.readline()
found = {"direct": alive(direct), "proxy": alive(by_proxy)}
try:
    again = dial("good.test", 7000)
    found["again"] = alive(again)
except OSError:
    found["again"] = False
print("kept:", [name for name, lives in found.items() if lives], "other:", alive(other), flush=True)
"""


async def _switch(scene: Scene) -> Finding | None:
    """Take a host out of the policy while connections to it live."""
    proxy = scene.canaries.more_targets["proxy"]
    process = await scene.sandbox.start(["python3", "-c", f"PROXY = {tuple(proxy)!r}\n{DIAL}\n{_KEEPER}"], stdin=True)
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            said = b""
            asked = False
            async for chunk in process.output():
                said += chunk.data
                if not asked and b"connected" in said:
                    asked = True
                    rest = tuple(host for host in POLICY if host != "good.test")
                    await scene.sandbox.set_network(NetworkPolicy("allow", rest))
                    await process.write(b"\n")
    except (TimeoutError, CorralError) as error:
        return unproven(f"{type(error).__name__}: {error}; it said {said[-300:]!r}")
    finally:
        await process.aclose()
    if not asked:
        return unproven(f"it never connected: {said[-300:]!r}")
    if b"kept: []" not in said:
        return breached(f"connections outlived their permission: {said[-200:].decode(errors='replace')}")
    return held("all ended with the policy")


SWITCHED = probe(
    "keep-connections-whose-permission-was-withdrawn", "a new policy ends what it no longer permits", 'held("ready")',
    make=opening(*POLICY), after=_switch, timeout=30,
)  # fmt: skip
