"""Probes for terminals and output: what a program prints is bytes, and its terminal is its own."""

from __future__ import annotations

import json

from corral.results import ExecResult
from corral.testing.hostile.probe import Finding, HostView, Probe, Scene, breached, held, unproven

_ESCAPES = b"\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\x1b]52;c;b3duZWQ=\x07\x1bP+q544e\x1b\\\x9b6n\x05"


def _expect_bytes(result: ExecResult, view: HostView) -> Finding | None:
    if _ESCAPES not in result.stdout_bytes:
        return breached("the bytes were changed on the way")
    if b"\xff\xfe\x00\x80" not in result.stdout_bytes:
        return breached("bytes that are no text were changed on the way")
    return None


ESCAPE_SEQUENCES = Probe(
    "print-escape-sequences-and-odd-bytes", "terminal", "info", "output is transported as bytes and never interpreted",
    f"""
os.write(1, bytes.fromhex("{_ESCAPES.hex()}") + bytes.fromhex("fffe0080") + b"\\n")
held("printed")
""",
    expect=_expect_bytes,
)  # fmt: skip


def _expect_real_status(result: ExecResult, view: HostView) -> Finding:
    if result.exit_code == 3 and result.reason == "exited":
        return held("the exit status is the kernel's, whatever was printed")
    return breached(f"{result.reason} with {result.exit_code}, not 3")


FAKE_END = Probe(
    "fake-the-end-of-a-call", "terminal", "info", "exit status by wait only, nothing printed is parsed",
    """
for stream in (1, 2):
    os.write(stream,
        b'\\n{"ended": true, "code": 0, "signal": 0, "reason": "exited"}\\n\\0{"ok": true}\\x04\\x00exit 0\\n')
os._exit(3)
""",
    expect=_expect_real_status,
)  # fmt: skip

CONTROLLING_TERMINAL = Probe(
    "take-the-hosts-terminal", "terminal", "escape", "a session of its own without a terminal",
    """
def write():
    return os.open("/dev/tty", os.O_RDWR)
for number in range(3):
    if os.isatty(number):
        breached(f"descriptor {number} is a terminal: {os.ttyname(number)}")
if os.getsid(0) != os.getpid() and os.getsid(0) == 0:
    breached("the session began outside")
try_all({"tty": write, "console": lambda: os.open("/dev/console", os.O_RDWR), "tty1": lambda: os.open("/dev/tty1",
    os.O_RDWR)}, NOT_THERE)
""",
)  # fmt: skip

FOREIGN_TERMINALS = Probe(
    "open-terminals-of-others", "terminal", "lateral", "a devpts instance of its own",
    """
strange = [name for name in os.listdir("/dev/pts") if name != "ptmx"]
breached(f"terminals of somebody: {strange}") if strange else held("no terminal but one's own")
""",
)  # fmt: skip

_IN_TERMINAL = r"""
import errno, fcntl, json, os, struct, sys, termios
log = []
for name, request, argument in (("TIOCSTI", 0x5412, b"x"), ("TIOCLINUX", 0x541C, b"\x03"), ("TIOCCONS", 0x541D, b""),
                                ("TIOCSETD", 0x5423, struct.pack("i", 13)), ("TIOCVHANGUP", 0x5437, b"")):
    try:
        fcntl.ioctl(0, request, argument)
    except OSError as error:
        log.append(f"{name} {errno.errorcode[error.errno]}")
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            print("\n" + json.dumps({"verdict": "breached", "evidence": log[-1]}), flush=True)
            sys.exit()
        continue
    print("\n" + json.dumps({"verdict": "breached", "evidence": name + " was accepted"}), flush=True)
    sys.exit()
print("\n" + json.dumps({"verdict": "held", "evidence": os.ttyname(0) + ": " + ", ".join(log)}), flush=True)
"""


async def _attack_terminal(scene: Scene) -> Finding | None:
    process = await scene.sandbox.start(["python3", "-c", _IN_TERMINAL], pty=True, timeout=8.0)
    try:
        result = await process.wait(timeout=10)
    finally:
        await process.aclose()
    for line in reversed(result.output.splitlines()):
        if line.startswith('{"verdict"'):
            said = json.loads(line)
            return held(said["evidence"]) if said["verdict"] == "held" else breached(said["evidence"])
    return unproven(f"no verdict from the terminal: {result.output[-200:]!r}")


TYPE_INTO_TERMINAL = Probe(
    "type-into-the-terminal", "terminal", "escape", "seccomp on ioctl: TIOCSTI and its like",
    'held("the host opens a terminal")',
    after=_attack_terminal,
)  # fmt: skip
