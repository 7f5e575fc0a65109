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
from typing import TYPE_CHECKING, Literal

from corral.cli.display import show_seconds, show_size
from corral.cli.words import in_cli_words
from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError
from corral.languages import find_language

if TYPE_CHECKING:
    from corral.backends.embedded.report import EngineReport

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


def _limit(subject: str, holds: bool, hard: str, soft: str, remedy: str) -> Finding:
    """A limit that the kernel enforces, or that is soft."""
    return Finding("limits", subject, "good", hard) if holds else Finding("limits", subject, "soft", soft, remedy)


_HARD = "hard: the kernel's cgroups"
_CGROUP_REMEDY = (
    "run as root, or let systemd delegate a cgroup to you: systemd-run --user --scope -p Delegate=yes corral …"
)
_PRINT_ONE = {
    "python": "print(1)", "bash": "echo 1", "sh": "echo 1", "javascript": "console.log(1)",
    "typescript": "const one: number = 1; console.log(one)",
}  # fmt: skip
"""A program in each language that prints 1."""
_PROGRAMS = ("python3", "pip", "bash", "git", "node", "npm", "bun", "deno", "ts-node", "gcc")


async def examine(tell: Tell) -> tuple[list[Finding], bool]:
    """All findings, and True if sandboxes work."""
    findings = [_machine(), *_user()]
    if sys.platform != "linux":
        text = f"this is {platform.system()}; the embedded engine needs Linux"
        findings.append(Finding("sandboxes", "embedded", "bad", text, "use a Linux machine or virtual machine"))
        return findings, False
    tell("checking the engine …")
    engine, hard = await _engine()
    tell("creating a sandbox …")
    tried, works = await _try(tell)
    tell("asking for package registries …")
    registries = await asyncio.to_thread(_registries)
    return [*findings, *tried, *engine, *registries, *(_data() if works or hard else [])], works


def _machine() -> Finding:
    text = f"{platform.system()} {platform.release()}, {platform.machine()}, Python {platform.python_version()}"
    return Finding("machine", "kernel", "good" if sys.platform == "linux" else "bad", text)


def _user() -> list[Finding]:
    if not hasattr(os, "geteuid"):
        return []
    found = Finding("machine", "user", "good", "root: each sandbox gets its own range of user ids")
    if os.geteuid() != 0:
        text = f"an ordinary user (uid {os.geteuid()}): one user id inside; system files can't be changed there"
        remedy = "run as root for separate users, `--user root`, and hard limits"
        found = Finding("machine", "user", "soft", text, remedy)
    return [found, *_namespace_settings()]


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
    from corral.backends.embedded.withheld import find_site_packages

    try:
        engine = await asyncio.to_thread(report.examine, settings.default_data_folder())
    except (CorralError, OSError) as error:
        return [_failed("limits", "engine", error, "CORRAL_DATA_DIR must be a writable folder")], False
    findings = [_cgroups(engine)]
    if not engine.uid_locks:
        text = "other users of this machine can claim the ranges of user ids: no lock folder in /run or /var/lib"
        findings.append(Finding("limits", "user ids", "soft", text, "let root write to /run"))
    count = _HARD if "pids" in engine.limited else "hard: a count of the sandbox's own user namespace"
    findings += [
        _limit(
            "memory", "memory" in engine.limited, _HARD,
            "soft: summed up ten times a second; a single process is limited by the kernel", _CGROUP_REMEDY,
        ),
        Finding("limits", "processes", "good", count),
        _limit(
            "cpu", "cpu" in engine.limited, _HARD,
            "not supported: --cpus and cpus= are rejected, and a program can use every CPU", _CGROUP_REMEDY,
        ),
        _limit(
            "disk", engine.hard_disk, f"hard: a file system for each sandbox ({engine.storage})",
            "soft: measured about once a second; a single file is limited by the kernel",
            "--ephemeral is hard; as root with loop devices and mkfs.ext4 (package e2fsprogs) disks are too",
        ),
        Finding("limits", "file locks", "soft", "soft: counted four times a second, since cgroups do not cover them"),
        _limit(
            "devices", engine.own_devices, "separate nodes for each sandbox",
            "shared with the host: programs inside can see when others open them, and lock them",
            "run as root for separate nodes",
        ),
        Finding("limits", "syscalls", "good", f"seccomp allow list: {engine.seccomp}"),
        _limit(
            "network", engine.transparent, "off unless network= permits something; then every connection is judged",
            "off unless network= permits something; then only programs that use a proxy reach it",
            "a kernel with nf_tables and its tproxy (module nft_tproxy) redirects every connection",
        ),
        _limit(
            "secrets", find_site_packages() is not None, "values stay outside; they are put into requests on the way",
            "not supported: the package cryptography is not installed", "pip install 'corral[secrets]'",
        ),
    ]  # fmt: skip
    return [*findings, *_upstream()], True


def _upstream() -> list[Finding]:
    """What the proxy of this machine means for --network."""
    from corral.backends.embedded.window import has_upstream

    try:
        if not has_upstream():
            return []
    except CorralError as error:
        return [Finding("limits", "upstream proxy", "soft", error.message, in_cli_words(error.hint))]
    text = "names are checked, addresses can't be: this machine reaches the internet through a proxy"
    remedy = "unset HTTP_PROXY, HTTPS_PROXY and ALL_PROXY if it is not needed"
    return [Finding("limits", "upstream proxy", "soft", text, remedy)]


def _cgroups(engine: EngineReport) -> Finding:
    parts = []
    if engine.unified:
        controllers = ", ".join(engine.unified_controllers) or "no controllers"
        parts.append(f"v2 ({controllers})")
    if engine.v1_controllers:
        parts.append(f"v1 ({', '.join(engine.v1_controllers)})")
    if not parts:
        return Finding("limits", "cgroups", "soft", "not available; process trees by subreapers", _CGROUP_REMEDY)
    return Finding("limits", "cgroups", "good", f"{' and '.join(parts)}; process trees by {engine.trees}")


def _failed(area: str, subject: str, error: CorralError | OSError, remedy: str = "") -> Finding:
    if isinstance(error, CorralError):
        return Finding(area, subject, "bad", error.message, in_cli_words(error.hint))
    return Finding(area, subject, "bad", str(error), remedy)


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
            text = f"created in {show_seconds(opened)} (the first one), ran 6 * 7 in {ran}"
            tell("looking for languages inside …")
            return [Finding("sandboxes", "embedded", "good", text), *await _languages(box)], True
    except (CorralError, OSError) as error:
        return [_failed("sandboxes", "embedded", error)], False


async def _languages(box: AsyncSandbox) -> list[Finding]:
    versions = await _versions(box)
    findings = []
    for name, code in _PRINT_ONE.items():
        language = find_language(name)
        try:
            result = await box.run_code(code, name, timeout=60)
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
        f"command -v {name} >/dev/null 2>&1 && printf '%s\\t%s\\n' {name} \"$({name} --version 2>&1 | head -n 1)\""
        for name in _PROGRAMS
    )
    result = await box.exec(f"{script}\nexit 0", timeout=60)
    versions = {}
    for line in result.stdout.splitlines():
        name, _, text = line.partition("\t")
        version = next((word.strip("v,;()") for word in text.split() if word.strip("v,;()")[:1].isdigit()), "")
        versions[name] = version
    return versions


# Package registries.


def _registries() -> list[Finding]:
    """What --network packages permits here, without logins."""
    from corral.backends.embedded.registries import find_registries
    from corral.backends.embedded.registries.registry import MISSING

    found = find_registries()
    findings = []
    for tool in dict.fromkeys(source.tool for source in found.sources):
        sources = [source for source in found.sources if source.tool == tool]
        text = "; ".join(f"{source.url} ({source.note})" if source.note else source.url for source in sources)
        missing = any(source.note.startswith(MISSING) for source in sources)
        remedy = "give packages a folder of their own that others can read, or a URL" if missing else ""
        findings.append(Finding("--network packages", tool, "soft" if missing else "good", text, remedy))
    for problem in found.problems:
        tool, _, reason = problem.partition(": ")
        findings.append(Finding("--network packages", tool, "note", reason))
    if not found.sources:
        findings.append(Finding("--network packages", "registries", "soft", "none: no tool here is configured for any"))
    return findings


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
