"""What pip prints, as progress while it works and as an error when it fails. Its text comes from inside: nothing in it
is believed but as words for a reader, all of it is bounded, and control characters are left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from corral.backends.embedded.registries import Registries
from corral.backends.embedded.registries.registry import MISSING
from corral.errors import BackendUnavailableError, CorralError, SpecError
from corral.results import ExecResult, OutputChunk

Tell = Callable[[str], None]
"""Gets one line: what is being done."""

_HINT = "check the names and versions; a package needs a wheel for this Python, or a source that builds here"
_MAX_LINE = 200
_MAX_REASON = 500
_MAX_VERSIONS = 120
_REASON_LINES = 3
_DOING = re.compile(r"(Collecting|Downloading|Building wheels?|Installing build dependencies|Getting requirements) .+")
_AGAIN = "an index does not answer; pip tries again"
_BROKEN = re.compile(r"WARNING: Retrying .* after connection broken by '(.*)': ")
_CAUSES = (
    ("certificate", "its certificate is not trusted: SSL_CERT_FILE names the file with those that are"),
    ("timed out", "it does not answer"),
    ("name resolution", "its name can't be resolved"),
    ("Name or service", "its name can't be resolved"),
    ("Connection", "no connection to it"),
)
"""Parts of what Python says, and what they mean."""
_UNTRUSTED = re.compile(r"WARNING: The repository located at (\S+) is not a trusted or secure host")
_NOTHING_FOUND = "No matching distribution found"
_VERSIONS = re.compile(r"\(from versions: (.*)\)$")


class Watched:
    """Pieces of pip's output, as lines for `tell`."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._rest = ""

    def take(self, chunk: OutputChunk) -> None:
        """The next piece."""
        *lines, rest = (self._rest + chunk.data.decode("utf-8", "replace")).split("\n")
        self._rest = rest[:_MAX_LINE]
        for line in lines:
            if _BROKEN.match(line):
                self._tell(_AGAIN)
            elif found := _DOING.match(line.strip()):
                self._tell(_clean(found[0])[:_MAX_LINE])


def find_broken(done: ExecResult) -> list[str]:
    """What broke the connections to indexes, as pip tells it."""
    lines = (_clean(line) for line in done.stderr.splitlines())
    return [found[1] for line in lines if (found := _BROKEN.match(line))]


def explain(
    done: ExecResult, packages: tuple[str, ...], registries: Registries, *, broken: Sequence[str] = ()
) -> CorralError:
    """The error for pip's failure, with what to do: whether an index, the way to it or the request is to blame.

    `broken` is what an earlier run of pip told of connections: it counts if this one found nothing.
    """
    what = f"packages={list(packages)} can't be installed"
    if done.denied:
        hosts = ",".join(dict.fromkeys(map(str, done.denied)))
        hint = (
            "an index, or a package that is built, leads to another host; if you trust it, permit it once, and the "
            f"wheels are kept: network='packages,{hosts}'"
        )
        return SpecError(f"{what}: {hosts.replace(',', ', ')} can't be reached", op="create", hint=hint)
    lines = [_clean(line) for line in done.stderr.splitlines() if line.strip()]
    indexes = ", ".join(dict.fromkeys(each.url for each in registries.sources if each.tool == "pip")) or "none"
    if done.timed_out:
        hint = f"try again, or choose a faster index for pip; now it has {indexes}"
        return BackendUnavailableError(f"{what}: pip timed out", op="create", hint=hint)
    if broken := find_broken(done) or (broken if _NOTHING_FOUND in done.stderr else ()):
        cause = next((cause for part, cause in _CAUSES if part.lower() in broken[-1].lower()), broken[-1][:_MAX_LINE])
        hint = f"check this machine's network and pip's settings (`pip config list`); its indexes are {indexes}"
        reason = f"an index can't be reached ({cause})"
        return BackendUnavailableError(f"{what}: {reason}", op="create", hint=hint)
    if untrusted := next((found[1] for line in lines if (found := _UNTRUSTED.match(line))), None):
        hint = f"use https, or accept it for pip: pip config set global.trusted-host {untrusted}"
        return SpecError(f"{what}: pip ignores {untrusted}, which is not https", op="create", hint=hint)
    marked = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    reason = " ".join(marked[-1:] or lines[-_REASON_LINES:])[-_MAX_REASON:] or f"pip ended with {done.exit_code}"
    missing = [f"{each.url} is {each.note}" for each in registries.sources if each.note.startswith(MISSING)]
    return SpecError(f"{what}: {reason}{_versions(marked)}", op="create", hint="; ".join([*missing, _HINT]))


def _versions(lines: list[str]) -> str:
    """The latest versions, if pip found any."""
    found = next((match[1] for line in lines if (match := _VERSIONS.search(line))), "none")
    if found == "none":
        return ""
    if len(found) > _MAX_VERSIONS:
        found = "… " + found[-_MAX_VERSIONS:].partition(", ")[2]
    return f" (there are {found})"


def _clean(line: str) -> str:
    return "".join(character for character in line.strip() if character.isprintable())
