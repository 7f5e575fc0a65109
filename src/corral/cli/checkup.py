"""The checks of `corral doctor`: findings, each with a mark and, if something is missing, the remedy."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from corral.cli.display import show_seconds, show_size
from corral.cli.words import in_cli_words
from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError
from corral.languages import find_language, language_names

Mark = Literal["good", "soft", "bad", "note"]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    area: str
    subject: str
    mark: Mark
    text: str
    remedy: str = ""


_CGROUP_REMEDY = (
    "run as root, or let systemd delegate a cgroup to you: systemd-run --user --scope -p Delegate=yes corral …"
)
_VERSIONS = {
    "python3": "python3 --version", "pip": "pip --version", "bash": "bash --version", "git": "git --version",
    "node": "node --version", "npm": "npm --version", "bun": "bun --version", "deno": "deno --version",
    "ts-node": "ts-node --version", "gcc": "gcc --version",
}  # fmt: skip


async def examine(tell: Tell) -> tuple[list[Finding], bool]:
    """All findings, and True if sandboxes work."""
    findings = [_machine(), *_who()]
    if sys.platform != "linux":
        text = f"this is {platform.system()}; the embedded engine needs Linux"
        findings.append(Finding("sandboxes", "embedded", "bad", text, "use a Linux machine or virtual machine"))
        return findings, False
    tell("checking the engine …")
    engine, hard = await _engine()
    tell("creating a sandbox …")
    tried, works = await _try(tell)
    return [*findings, *tried, *engine, *(_data() if works or hard else [])], works


def _machine() -> Finding:
    text = f"{platform.system()} {platform.release()}, {platform.machine()}, Python {platform.python_version()}"
    return Finding("machine", "kernel", "good" if sys.platform == "linux" else "bad", text)


def _who() -> list[Finding]:
    if not hasattr(os, "geteuid"):
        return []
    if os.geteuid() == 0:
        text = "root: each sandbox gets its own range of user ids"
        return [Finding("machine", "user", "good", text), *_namespace_settings()]
    text = f"an ordinary user (uid {os.geteuid()}): one user id inside; system files can't be changed there"
    remedy = "run as root for separate users, `--user root`, and hard limits"
    return [Finding("machine", "user", "soft", text, remedy), *_namespace_settings()]


def _namespace_settings() -> list[Finding]:
    """Settings that forbid user namespaces to ordinary users. Whether namespaces work is tested below."""
    forbidding = {
        "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        "/proc/sys/user/max_user_namespaces": ("0", "sysctl -w user.max_user_namespaces=15000"),
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
            "1", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for this Python",
        ),
    }  # fmt: skip
    findings = []
    for path, (bad, remedy) in forbidding.items():
        try:
            value = Path(path).read_text().strip()
        except OSError:
            continue
        if value == bad:
            name = path.removeprefix("/proc/sys/").replace("/", ".")
            mark: Mark = "note" if os.geteuid() == 0 else "soft"
            findings.append(
                Finding("machine", "namespaces", mark, f"{name} is {value}: disabled for ordinary users", remedy)
            )
    return findings


# The engine.


async def _engine() -> tuple[list[Finding], bool]:
    from corral.backends.embedded import report, settings

    try:
        engine = await asyncio.to_thread(report.examine, settings.default_data_folder())
    except (CorralError, OSError) as error:
        hint = (
            in_cli_words(error.hint) if isinstance(error, CorralError) else "CORRAL_DATA_DIR must be a writable folder"
        )
        return [Finding("limits", "engine", "bad", _message(error), hint)], False
    findings = [_cgroups(engine)]
    if not engine.uid_locks:
        text = "other users of this machine can claim the ranges of user ids: no lock folder in /run or /var/lib"
        findings.append(Finding("limits", "user ids", "soft", text, "let root write to /run"))
    for name, subject in (("memory", "memory"), ("pids", "processes"), ("cpu", "cpu")):
        if name in engine.limited:
            findings.append(Finding("limits", subject, "good", "hard: the kernel's cgroups"))
        elif name == "memory":
            text = "soft: summed up ten times a second; a single process is limited by the kernel"
            findings.append(Finding("limits", subject, "soft", text, _CGROUP_REMEDY))
        elif name == "pids":
            findings.append(Finding("limits", subject, "good", "hard: a count of the sandbox's own user namespace"))
        else:
            text = "not supported: --cpus and cpus= are rejected, and a program can use every CPU"
            findings.append(Finding("limits", subject, "soft", text, _CGROUP_REMEDY))
    if engine.hard_disk:
        findings.append(Finding("limits", "disk", "good", f"hard: a file system for each sandbox ({engine.storage})"))
    else:
        remedy = "--ephemeral is hard; as root with loop devices and mkfs.ext4 (package e2fsprogs) disks are too"
        text = "soft: measured about once a second; a single file is limited by the kernel"
        findings.append(Finding("limits", "disk", "soft", text, remedy))
    locks = "soft: counted four times a second, since cgroups do not cover them"
    findings.append(Finding("limits", "file locks", "soft", locks))
    if engine.own_devices:
        findings.append(Finding("limits", "devices", "good", "separate nodes for each sandbox"))
    else:
        text = "shared with the host: programs inside can see when others open them, and lock them"
        findings.append(Finding("limits", "devices", "soft", text, "run as root for separate nodes"))
    findings.append(Finding("limits", "syscalls", "good", f"seccomp allow list: {engine.seccomp}"))
    findings.append(Finding("limits", "network", "good", "off: a sandbox has only loopback"))
    return findings, True


def _cgroups(engine: object) -> Finding:
    from corral.backends.embedded.report import EngineReport

    assert isinstance(engine, EngineReport)
    parts = []
    if engine.unified:
        controllers = ", ".join(engine.unified_controllers) or "no controllers"
        parts.append(f"v2 ({controllers})")
    if engine.v1_controllers:
        parts.append(f"v1 ({', '.join(engine.v1_controllers)})")
    if not parts:
        return Finding("limits", "cgroups", "soft", "not available; process trees by subreapers", _CGROUP_REMEDY)
    return Finding("limits", "cgroups", "good", f"{' and '.join(parts)}; process trees by {engine.trees}")


def _message(error: Exception) -> str:
    return error.message if isinstance(error, CorralError) else str(error)


# A test sandbox.


async def _try(tell: Tell) -> tuple[list[Finding], bool]:
    begun = asyncio.get_running_loop().time()
    try:
        async with AsyncSandbox() as box:
            opened = asyncio.get_running_loop().time() - begun
            result = await box.run_code("print(6 * 7)", timeout=30)
            if result.stdout.strip() != "42":
                text = f"6 * 7 gave {result.output.strip()[-200:]!r} ({result.reason})"
                return [Finding("sandboxes", "embedded", "bad", text, "CORRAL_DEBUG=1 shows more")], False
            ran = show_seconds(result.usage.wall_seconds)
            text = f"made in {show_seconds(opened)} (the first one), ran 6 * 7 in {ran}"
            tell("looking for languages inside …")
            return [Finding("sandboxes", "embedded", "good", text), *await _languages(box)], True
    except (CorralError, OSError) as error:
        hint = in_cli_words(error.hint) if isinstance(error, CorralError) else ""
        return [Finding("sandboxes", "embedded", "bad", _message(error), hint)], False


async def _languages(box: AsyncSandbox) -> list[Finding]:
    versions = await _versions(box)
    findings = []
    hello = {"python": "print(1)", "bash": "echo 1", "sh": "echo 1", "javascript": "console.log(1)",
             "typescript": "const one: number = 1; console.log(one)"}  # fmt: skip
    for name in language_names():
        if name not in hello:
            continue
        language = find_language(name)
        try:
            result = await box.run_code(hello[name], name, timeout=60)
        except CorralError as error:
            findings.append(Finding("languages", name, "soft", "not installed", error.hint or language.hint))
            continue
        if result.stdout.strip() == "1":
            seconds = show_seconds(result.usage.wall_seconds)
            findings.append(Finding("languages", name, "good", f"runs; a first line in {seconds}"))
        else:
            findings.append(Finding("languages", name, "bad", f"fails: {result.output.strip()[-200:]}", language.hint))
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    findings.append(Finding("languages", "programs", "note", found or "not found"))
    return findings


async def _versions(box: AsyncSandbox) -> dict[str, str]:
    script = "\n".join(
        f"command -v {name} >/dev/null 2>&1 && printf '%s\\t%s\\n' {name} \"$({command} 2>&1 | head -n 1)\""
        for name, command in _VERSIONS.items()
    )
    result = await box.exec(f"{script}\nexit 0", timeout=60)
    versions = {}
    for line in result.stdout.splitlines():
        name, _, text = line.partition("\t")
        version = next((word.strip("v,;()") for word in text.split() if word.strip("v,;()")[:1].isdigit()), "")
        versions[name] = version
    return versions


# The data folder.


def _data() -> list[Finding]:
    from corral.backends.embedded import report, settings

    folder = settings.default_data_folder()
    if not folder.is_dir():
        return []
    parts = report.measure_data(folder)
    used = ", ".join(f"{name} {show_size(size)}" for name, size in parts.items() if size >= 1 << 20)
    free = shutil.disk_usage(folder).free
    text = f"{folder}: {show_size(sum(parts.values()))}{f' ({used})' if used else ''}, {show_size(free)} free"
    mark: Mark = "good" if free > 1 << 30 else "soft"
    remedy = "" if mark == "good" else "free some space, or set CORRAL_DATA_DIR to a larger disk"
    findings = [Finding("data", "folder", mark, text, remedy)]
    left = report.measure_leftovers(folder)
    if left > 1 << 20:
        text = f"{show_size(left)} of deleted sandboxes"
        findings.append(Finding("data", "leftovers", "note", text, "corral sandbox gc"))
    return findings
