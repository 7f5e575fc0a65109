"""Probes for terminals and output: printed bytes are never interpreted, and a program's terminal is separate."""

from __future__ import annotations

import functools

from corral.results import ExecResult
from corral.testing.hostile.prelude import compose_python
from corral.testing.hostile.probe import Finding, HostView, Probe, Scene, breached, held, read_verdict, unproven

_probe = functools.partial(Probe, area="terminal")
_ESCAPES = b"\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\x1b]52;c;b3duZWQ=\x07\x1bP+q544e\x1b\\\x9b6n\x05"


def _expect_bytes(result: ExecResult, view: HostView) -> Finding | None:
    if _ESCAPES not in result.stdout_bytes:
        return breached("the bytes were changed on the way")
    if b"\xff\xfe\x00\x80" not in result.stdout_bytes:
        return breached("bytes that are not text were changed on the way")
    return None


ESCAPE_SEQUENCES = _probe(
    "print-escape-sequences-and-odd-bytes", "info", "output is passed on as bytes, never interpreted", f"""
os.write(1, bytes.fromhex("{_ESCAPES.hex()}") + bytes.fromhex("fffe0080") + b"\\n")
held("printed")
""", expect=_expect_bytes)  # fmt: skip


def _expect_real_status(result: ExecResult, view: HostView) -> Finding:
    if result.exit_code == 3 and result.reason == "exited":
        return held("the exit status is the kernel's, whatever was printed")
    return breached(f"{result.reason} with {result.exit_code}, not 3")


FAKE_END = _probe("fake-the-end-of-a-call", "info", "the exit status comes from wait; printed text is never parsed", """
text = b'\\n{"ended": true, "code": 0, "signal": 0, "reason": "exited"}\\n\\0{"ok": true}\\x04\\x00exit 0\\n'
for stream in (1, 2):
    os.write(stream, text)
os._exit(3)
""", expect=_expect_real_status)  # fmt: skip

CONTROLLING_TERMINAL = _probe(
    "take-the-hosts-terminal", "escape", "each call has its own session, without a terminal", """
for number in range(3):
    if os.isatty(number):
        breached(f"descriptor {number} is a terminal: {os.ttyname(number)}")
if os.getsid(0) != os.getpid() and os.getsid(0) == 0:
    breached("the session began outside")
try_each(lambda path: os.open(path, os.O_RDWR), ("/dev/tty", "/dev/console", "/dev/tty1"), NOT_THERE)
""")  # fmt: skip

FOREIGN_TERMINALS = _probe("open-terminals-of-others", "lateral", "each sandbox has its own devpts instance", """
strange = [name for name in os.listdir("/dev/pts") if name != "ptmx"]
breached(f"other terminals: {strange}") if strange else held("no other terminal")
""")  # fmt: skip

_IN_TERMINAL = """
attempts = {"TIOCSTI": (0x5412, b"x"), "TIOCLINUX": (0x541C, b"\\3"), "TIOCCONS": (0x541D, b""),
            "TIOCSETD": (0x5423, struct.pack("i", 13)), "TIOCVHANGUP": (0x5437, b"")}
try_each(lambda request, argument: fcntl.ioctl(0, request, argument), attempts)
"""


async def _attack_terminal(scene: Scene) -> Finding | None:
    program = compose_python(_IN_TERMINAL)
    process = await scene.sandbox.start(["python3", "-c", program], pty=True, timeout=8.0)
    try:
        result = await process.wait(timeout=10)
    finally:
        await process.aclose()
    return read_verdict(result) or unproven(f"no verdict from the terminal: {result.output[-200:]!r}")


TYPE_INTO_TERMINAL = _probe(
    "type-into-the-terminal", "escape", "seccomp on ioctl: TIOCSTI and its like",
    'held("the host opens a terminal")',
    after=_attack_terminal,
)  # fmt: skip
