"""Run folders for tests of what is told from them: five candidates with everything that a page may stumble over."""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from corral.forge.definition import FORMAT
from corral.forge.events import ForgeEvent
from corral.forge.judge.model import GateVerdict, Points, Standing
from corral.forge.outcome import ArtifactFile, Attempt, Outcome, Refused
from corral.forge.runfolder import RunWriter
from corral.forge.settings import Settings
from corral.forge.statistics import describe_seconds

OBJECTIVE = "Write a short post that announces the release, with three reasons to upgrade."
CANARY = "window.__hacked = 1"
HOSTILE_NAME = f'</script><script>{CANARY}</script><img src=x onerror="{CANARY}">'
HOSTILE_LINE = f'</pre></script><script>{CANARY}</script><svg onload="{CANARY}"> "quoted" &amp; `$name`'
HOSTILE_FILE = f'"><img src=x onerror="{CANARY}">.md'
NEEDLE = "a needle in line 4321"

_GOOD_POST = (
    "# Release 2.0\n\nThe new release is here.\n\n- It starts twice as fast.\n- It needs half the memory.\n"
    "- It has a live page.\n\nUpgrade today.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One candidate's part in the play."""

    id: str
    name: str
    description: str
    seconds: float
    memory: int
    outcome: Outcome
    log: str
    files: dict[str, bytes]
    quality: float
    reason: str = ""
    exit_code: int = 0
    failed_gate: str = ""


def make_png(width: int = 24, height: int = 16) -> bytes:
    """A small picture."""
    rows = b"".join(
        b"\0" + b"".join(bytes((x * 255 // width, y * 255 // height, 160)) for x in range(width)) for y in range(height)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def list_parts(output: str) -> tuple[Part, ...]:
    """Fast, thorough, balanced, one that crashes, and one that writes rubbish."""
    long_log = "".join(f"step {number}: thinking\n" for number in range(1, 5001)).replace("step 4321: thinking", NEEDLE)
    return (
        Part(
            id="fast", name="Fast", description="Writes the first thing that comes to mind", seconds=0.31,
            memory=18 * 1024 * 1024, outcome="ok", log="drafting\ndone in one go\n", quality=61.0,
            files={output: b"# Release 2.0\n\nThe new release is here.\n\n- It is fast.\n\nUpgrade today.\n"},
        ),
        Part(
            id="thorough", name="Thorough", description="Thinks about every sentence", seconds=4.8,
            memory=210 * 1024 * 1024, outcome="ok", log=long_log, quality=97.0,
            files={
                output: _GOOD_POST.encode() + b"\nFull notes are below.\n",
                "sketch.png": make_png(), "notes/numbers.bin": bytes(range(256)) * 8,
                "notes/page.svg": f"<svg onload='{CANARY}'></svg>".encode(),
                "big.txt": b"a line of a big file\n" * 40_000,
            },
        ),
        Part(
            id="balanced", name="Balanced", description="A little of both", seconds=1.2, memory=64 * 1024 * 1024,
            outcome="ok", quality=90.0,
            log="\x1b[32mreading\x1b[0m\r\nwriting 10%\rwriting 100%\nשלום \u202eevil\u202c\n",
            files={output: _GOOD_POST.encode()},
        ),
        Part(
            id="crash", name="Crash", description="Falls over", seconds=0.12, memory=12 * 1024 * 1024,
            outcome="crashed", log="Traceback (most recent call last):\nZeroDivisionError: division by zero\n",
            quality=0.0, files={}, reason="exit code 1", exit_code=1, failed_gate="exit code",
        ),
        Part(
            id="rubbish", name=HOSTILE_NAME, description=f"Writes rubbish \u202e{HOSTILE_LINE}", seconds=0.5,
            memory=30 * 1024 * 1024, outcome="ok", log=f"{HOSTILE_LINE}\n\x1b]0;title\x07\x07\x00bell\n", quality=4.0,
            files={output: f"{HOSTILE_LINE}\n".encode(), HOSTILE_FILE: b"a hostile name\n"},
            failed_gate="schema", reason=f"no heading {HOSTILE_LINE}",
        ),
    )  # fmt: skip


def write_run(
    folder: Path, *, repeat: int = 1, state: str = "finished", tie: bool = False, nobody: bool = False,
    judged: bool = True, faster: float = 1.0, seed: int = 7,
) -> Path:  # fmt: skip
    """Write a run's folder as a contest would, and give its path."""
    settings = Settings(repeat=repeat, seed=seed, jobs=2)
    parts = list_parts(settings.output)
    definition = _define(folder.name, settings, parts, state)
    writer = RunWriter.begin(folder)
    try:
        writer.define(definition)
        for event in list_events(folder, definition, parts, repeat=repeat, faster=faster):
            writer.append(event)
        standings = rank(parts, repeat=repeat, tie=tie, nobody=nobody, faster=faster) if judged else ()
        at = 30.0
        if judged:
            writer.append(ForgeEvent("judging", at))
            for standing in standings:
                writer.append(ForgeEvent("judged", at, standing.candidate, None, standing.to_json()))
        winners = [standing.candidate for standing in standings if standing.rank == 1]
        if state != "running":
            writer.append(ForgeEvent("run-ended", at + 1, data={"state": state, "winners": winners, "seconds": at + 1}))
            writer.finish({"run": folder.name, "state": state, "winners": winners})
    finally:
        writer.close()
    return folder


def _define(run: str, settings: Settings, parts: tuple[Part, ...], state: str) -> dict[str, Any]:
    return {
        "format": FORMAT, "run": run, "state": state, "started": "2026-03-01T12:00:00+00:00",
        "versions": {"corral": "0.1.0", "python": "3.12.1", "kernel": "Linux 6.8 x86_64", "backend": "embedded"},
        "objective": OBJECTIVE, "settings": asdict(settings), "jobs": 2, "salt": "00",
        "order": [[part.id, number] for number in range(1, settings.repeat + 1) for part in parts],
        "candidates": [
            {
                "id": part.id, "name": part.name, "description": part.description, "packages": [], "resources": None,
                "source": {"kind": "script", "path": f"candidates/{part.id}.py", "sha256": _sha256(part.id.encode())},
                "env": {}, "image": None, "network": {"mode": "none", "hosts": []},
            }
            for part in parts
        ],
        "judge": {
            "gates": [{"name": "exit code", "kind": "exit-code"}, {"name": "schema", "kind": "regex"}],
            "scores": [
                {"name": "success", "kind": "success", "weight": 0.2},
                {"name": "quality", "kind": "function", "weight": 0.6},
                {"name": "speed", "kind": "speed", "weight": 0.2},
            ],
            "tie_margin": 0.0,
        },
    }  # fmt: skip


def list_events(
    folder: Path, definition: dict[str, Any], parts: tuple[Part, ...], *, repeat: int = 1, faster: float = 1.0
) -> list[ForgeEvent]:
    """All but the judging, with the artifacts laid down beside."""
    named = [{"id": part.id, "name": part.name, "description": part.description} for part in parts]
    events = [
        ForgeEvent("run-started", 0.0, data={
            "run": definition["run"], "objective": OBJECTIVE, "candidates": named, "order": definition["order"],
            "jobs": 2, "repeat": repeat, "seed": definition["settings"]["seed"], "backend": "embedded",
            "resumed": False,
        }),
        ForgeEvent("base-ready", 0.2, data={"how": "snapshot", "seconds": 0.2}),
        ForgeEvent("warning", 0.2, data={"text": f"peak memory is rough {HOSTILE_LINE}"}),
    ]  # fmt: skip
    at = 0.3
    for number in range(1, repeat + 1):
        for part in parts:
            attempt = _attempt(folder, part, number, repeat, faster)
            phases = ("create", "place", "run")
            events += [ForgeEvent("phase", at, part.id, number, {"phase": phase}) for phase in phases]
            for start in range(0, len(part.log), 4000):
                text = part.log[start : start + 4000]
                events.append(ForgeEvent("output", at, part.id, number, {"stream": "stdout", "text": text}))
            meter = {
                "seconds": part.seconds / 2,
                "cpu_seconds": part.seconds / 3,
                "memory_bytes": part.memory,
                "processes": 1,
            }
            events.append(ForgeEvent("meter", at + 0.01, part.id, number, meter))
            at += 0.1
            events.append(ForgeEvent("attempt-ended", at, part.id, number, attempt.to_json()))
    return events


def _attempt(folder: Path, part: Part, number: int, repeat: int, faster: float) -> Attempt:
    target = folder / part.id if repeat == 1 else folder / part.id / str(number)
    taken = []
    for name, data in part.files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(data)
        taken.append(ArtifactFile(name, len(data), _sha256(data)))
    return Attempt(
        candidate=part.id, round=number, outcome=part.outcome, reason=part.reason if part.outcome != "ok" else "",
        exit_code=part.exit_code, seconds=_seconds(part, number) / faster, cpu_seconds=part.seconds * 0.8,
        peak_memory_bytes=part.memory, phases={"create": 0.05, "place": 0.01, "run": part.seconds, "collect": 0.02},
        artifacts=tuple(taken), refused=(Refused("leak", "a link (to /etc/passwd)"),) if part.id == "rubbish" else (),
        log=part.log, log_bytes=len(part.log.encode("utf-8", "surrogatepass")), sandbox_id=f"box-{part.id}-{number}",
    )  # fmt: skip


def _seconds(part: Part, number: int) -> float:
    return part.seconds * (1 + 0.04 * ((number * 7) % 5 - 2))


def rank(
    parts: tuple[Part, ...], *, repeat: int = 1, tie: bool = False, nobody: bool = False, faster: float = 1.0
) -> tuple[Standing, ...]:
    """As a judge would, by quality and speed."""
    quickest = min(part.seconds for part in parts if part.outcome == "ok")
    found: list[Standing] = []
    for part in parts:
        out = bool(part.failed_gate) or nobody
        success, speed = 100.0 if part.outcome == "ok" else 0.0, 100 * quickest / part.seconds
        times = [_seconds(part, number) / faster for number in range(1, repeat + 1)]
        found.append(
            Standing(
                candidate=part.id, rank=None, total=0.2 * success + 0.6 * part.quality + 0.2 * speed,
                disqualified=out, reason=part.reason or ("a gate failed" if out else ""),
                gates=(
                    GateVerdict("exit code", part.exit_code == 0 and not nobody, "exit code 1" * part.exit_code),
                    GateVerdict("schema", part.failed_gate != "schema", part.reason * (part.failed_gate == "schema")),
                ),
                scores={
                    "success": Points(success), "quality": Points(part.quality, {"words": 40, "said": "good"}),
                    "speed": Points(min(100.0, speed)),
                },
                seconds=describe_seconds(times), cpu_seconds=part.seconds * 0.8, peak_memory_bytes=part.memory,
            )
        )  # fmt: skip
    ranked = sorted((standing for standing in found if not standing.disqualified), key=lambda one: -one.total)
    placed = [replace(standing, rank=number) for number, standing in enumerate(ranked, start=1)]
    if tie and len(placed) > 1:
        placed[:2] = [replace(standing, rank=1, tied=True, total=placed[0].total) for standing in placed[:2]]
    return (*placed, *(standing for standing in found if standing.disqualified))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
