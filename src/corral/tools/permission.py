"""Permission rules: what a tool may do to which path or command, as data; and the real path behind a name.

Rules are patterns; the first that matches decides. In patterns for paths `*` stays within a name, `**` crosses folders,
and `[!x]` and `{a,b}` are supported. A pattern that begins neither with a slash nor with `**` is a name anywhere; if it
has a slash, it is a path from the working folder. With a slash at its end it means the folder and everything in it. A
rule that denies a folder, or says to ask, holds for everything in it; a rule that allows a folder does not. Commands
are texts, in which `*` matches anything. Rules for commands guide a model; the boundary is the sandbox.
"""

from __future__ import annotations

import fnmatch
import functools
import posixpath
import re
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from corral.errors import SandboxFileError, SandboxFileNotFoundError, SandboxNotFolderError
from corral.paths import FollowedPath, inside
from corral.protocol import PathLike
from corral.results import FileInfo

Action = Literal["allow", "deny", "ask"]
Operation = Literal["read", "write", "edit", "execute", "glob", "grep", "ls"]
OPERATIONS: tuple[Operation, ...] = ("read", "write", "edit", "execute", "glob", "grep", "ls")

SECRETS = (
    "**/.env",
    "**/.env.*",
    "**/*.pem",
    "**/*.key",
    "**/*.crt",
    "**/credentials*",
    "**/secrets*",
    "**/*secret*",
    "**/*password*",
    "**/.aws/**",
    "**/.ssh/**",
    "**/.gnupg/**",
)
SYSTEM = ("/etc/**", "/var/**", "/usr/**", "/bin/**", "/sbin/**", "/boot/**", "/sys/**", "/proc/**")
DANGEROUS = (
    "rm -rf /*",
    "rm -rf /",
    ":(){:|:&};:",
    "dd if=*of=/dev/*",
    "mkfs*",
    "> /dev/sda",
    "chmod -R 777 /",
)

_MAX_LINKS = 40  # as the kernel


def expand_braces(pattern: str, *, limit: int = 64) -> tuple[str, ...]:
    """`*.{js,ts}` as `*.js` and `*.ts`. If there were more than `limit`, the pattern itself, with its braces."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        current = waiting.pop(0)
        found = re.search(r"\{([^{}]*,[^{}]*)\}", current)
        if found is None:
            done.append(current)
            continue
        waiting = [
            f"{current[: found.start()]}{word}{current[found.end() :]}" for word in found[1].split(",")
        ] + waiting
        if len(waiting) + len(done) > limit:
            return (pattern,)
    return tuple(done)


def refuse_tilde(pattern: str, called: str) -> None:
    """Raises: ValueError for a pattern of a path that begins with `~`, which would match nothing without a warning."""
    if re.match(r"~$|~[^/*?\[]*/", pattern):
        raise ValueError(f"{called}: ~ is not expanded; write the full path of the folder, or **/ for any folder")


@dataclass(frozen=True, slots=True)
class Rule:
    """One pattern and what it decides; `note` says why, in the refusal."""

    pattern: str
    action: Action
    note: str = ""


@dataclass(frozen=True, slots=True)
class OperationRules:
    """The rules of one operation, and the action if no rule matches."""

    default: Action = "allow"
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """An action, and the rule that decided it; None if the default did."""

    action: Action
    rule: Rule | None = None


@dataclass(frozen=True, slots=True)
class Permissions:
    """The rules of every operation. `rules` hold for all of them, after an operation's own; `default` comes last.

    `workdirs` are names of the working folder, for patterns of paths in it; tools fill them in.

    Raises:
        ValueError: a pattern for paths begins with `~`.
    """

    default: Action = "allow"
    rules: tuple[Rule, ...] = ()
    read: OperationRules | None = None
    write: OperationRules | None = None
    edit: OperationRules | None = None
    execute: OperationRules | None = None
    glob: OperationRules | None = None
    grep: OperationRules | None = None
    ls: OperationRules | None = None
    workdirs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for rule in self._path_rules():
            for part in expand_braces(rule.pattern):
                refuse_tilde(part, f"the rule {rule.pattern!r}")

    def _path_rules(self) -> tuple[Rule, ...]:
        own = [self.rules_of(operation) for operation in OPERATIONS if operation != "execute"]
        return (*(rule for each in own if each is not None for rule in each.rules), *self.rules)

    def within(self, *workdirs: str) -> Permissions:
        """The same rules for a working folder with these names."""
        return replace(self, workdirs=tuple(dict.fromkeys(workdirs)))

    @property
    def needs_workdir(self) -> bool:
        """True if a rule needs every name of the working folder: its pattern is a path from there, or means folders."""
        return any(
            rule.action != "allow" or _is_relative(part)
            for rule in self._path_rules()
            for part in expand_braces(rule.pattern)
        )

    def decide(self, operation: Operation, target: str) -> Decision:
        """The first rule that matches, or the default. A path is absolute and normalised.

        A rule that denies a folder, or says to ask, holds for everything in it. But a rule that matches the working
        folder itself, or a folder above it, does not hold for the content of the working folder.
        """
        default, rules = self._find_rules(operation)
        to_ask: Decision | None = None
        for rule in rules:
            if self._matches(rule, operation, target):
                return self._stricter(Decision(rule.action, rule), to_ask)
            if operation != "execute" and rule.action != "allow" and self._matches_folder(rule, target):
                if rule.action == "deny":
                    return Decision("deny", rule)
                to_ask = to_ask or Decision("ask", rule)  # a later rule may still deny it
        return self._stricter(Decision(default), to_ask)

    @staticmethod
    def _stricter(found: Decision, to_ask: Decision | None) -> Decision:
        return to_ask if to_ask is not None and found.action == "allow" else found

    def _matches(self, rule: Rule, operation: Operation, target: str) -> bool:
        command = operation == "execute"
        pattern = compile_pattern(rule.pattern, command=command, workdirs=() if command else self.workdirs)
        return pattern.fullmatch(target) is not None

    def _matches_folder(self, rule: Rule, target: str) -> bool:
        """True if the rule matches a folder that the path is in."""
        # Checked first: one match for all folders, which fails for most paths.
        if compile_pattern(rule.pattern, workdirs=self.workdirs, below=True).fullmatch(target) is None:
            return False
        pattern = compile_pattern(rule.pattern, workdirs=self.workdirs)
        folder = posixpath.dirname(target)
        while folder not in ("", "/"):
            if pattern.fullmatch(folder) and not any(f"{name}/".startswith(f"{folder}/") for name in self.workdirs):
                return True
            folder = posixpath.dirname(folder)
        return False

    def rules_of(self, operation: Operation) -> OperationRules | None:
        """The operation's own rules."""
        found: OperationRules | None = getattr(self, operation)
        return found

    def _find_rules(self, operation: Operation) -> tuple[Action, tuple[Rule, ...]]:
        """The default and the rules that apply to an operation, in their order."""
        own = self.rules_of(operation) or OperationRules(self.default)
        return own.default, (*own.rules, *self.rules)

    def never(self, operation: Operation) -> bool:
        """True if nothing could ever be allowed, so that the tool need not be shown."""
        default, rules = self._find_rules(operation)
        return default == "deny" and all(rule.action == "deny" for rule in rules)


def _deny(patterns: tuple[str, ...], note: str) -> tuple[Rule, ...]:
    return tuple(Rule(pattern, "deny", note) for pattern in patterns)


_NO_SECRETS = _deny(SECRETS, "Protect sensitive files")
_NO_SECRETS_NOR_SYSTEM = _deny((*SECRETS, *SYSTEM), "Protect sensitive and system files")
_NO_DANGER = _deny(DANGEROUS, "Block dangerous commands")


def _preset(
    default: Action, *, read: Action, find: Action, change: Action, run: Action, kept: tuple[Rule, ...] = _NO_SECRETS
) -> Permissions:
    """Rules for reading, searching, changing and running; `kept` are those for changing."""
    changing = OperationRules(change, kept if change != "deny" else ())
    finding = OperationRules(find)
    return Permissions(
        default=default,
        read=OperationRules(read, _NO_SECRETS),
        write=changing,
        edit=changing,
        execute=OperationRules(run, _NO_DANGER if run != "deny" else ()),
        glob=finding,
        grep=finding,
        ls=finding,
    )


DEFAULT = _preset("ask", read="allow", find="allow", change="ask", run="ask")
PERMISSIVE = _preset("allow", read="allow", find="allow", change="allow", run="allow", kept=_NO_SECRETS_NOR_SYSTEM)
READONLY = _preset("deny", read="allow", find="allow", change="deny", run="deny")
STRICT = _preset("ask", read="ask", find="ask", change="ask", run="ask")


@functools.lru_cache(maxsize=1024)
def compile_pattern(
    pattern: str, *, command: bool = False, workdirs: tuple[str, ...] = (), below: bool = False
) -> re.Pattern[str]:
    """A pattern as a regular expression that matches a whole path, or a whole command.

    With names of a working folder, it matches absolute paths, even if the pattern is not absolute. With `below` it
    matches what is in a folder that the pattern matches.
    """
    meant = "|".join(
        f"(?:{start}{_translate(rest, command=command)})"
        for part in expand_braces(pattern)
        for start, rest in _anchor(part, workdirs)
    )
    return re.compile(f"(?:{meant})/.+" if below else meant, re.DOTALL)


def _is_relative(pattern: str) -> bool:
    """True if a pattern is a path from the working folder."""
    return pattern in (".", "..") or ("/" in pattern and not pattern.startswith(("/", "**")))


def _anchor(pattern: str, workdirs: tuple[str, ...]) -> list[tuple[str, str]]:
    """The ways to match a pattern in an absolute path: a regular expression, and the pattern that follows it."""
    if pattern.startswith(("/", "**")):
        return [("", _tidy(pattern))]
    if not workdirs:
        return [("", pattern)]
    if not _is_relative(pattern):
        return [("(?:.*/)?", pattern)]
    return [_anchor_at(folder, _tidy(pattern)) for folder in workdirs]


def _anchor_at(folder: str, pattern: str) -> tuple[str, str]:
    """The same for a tidy pattern of a path from this folder."""
    parts = pattern.split("/")
    while parts and parts[0] in (".", ".."):
        folder = posixpath.dirname(folder) if parts.pop(0) == ".." else folder
    return re.escape(folder.rstrip("/") if parts else folder), "".join(f"/{part}" for part in parts)


def _tidy(pattern: str) -> str:
    """The normal form of a pattern that is a path; a slash at its end means the folder and everything in it."""
    tidy = posixpath.normpath(pattern)
    if tidy.startswith("//"):  # normpath keeps two slashes, which POSIX permits to mean something else
        tidy = tidy[1:]
    return f"{tidy}/**" if pattern.endswith("/") and tidy != "/" else tidy


def translate_glob(pattern: str) -> str:
    """The regular expression of `fnmatch.translate`, without the anchor at its end, to be part of a larger one."""
    return re.sub(r"\\[Zz]$", "", fnmatch.translate(pattern))  # the anchor's letter depends on Python's version


_CLASS = r"\[(?P<negated>[!^]?+)(?P<signs>\][^\]]*|[^\]]+)\]"
_PATH_TOKEN = re.compile(rf"\*\*/|/\*\*\Z|\*\*|\*|\?|{_CLASS}|.", re.DOTALL)
_PATH_WILDCARDS = {"**/": "(?:.*/)?", "/**": "(?:/.*)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
"""As regular expressions. `/**` at the end matches the folder itself too."""
_COMMAND_TOKEN = re.compile(rf"/\*\*\Z|\*|\?|{_CLASS}|.", re.DOTALL)
_COMMAND_WILDCARDS = {"/**": "(?:/.*)?", "*": ".*", "?": "."}


def _translate(pattern: str, *, command: bool) -> str:
    tokens, wildcards = (_COMMAND_TOKEN, _COMMAND_WILDCARDS) if command else (_PATH_TOKEN, _PATH_WILDCARDS)

    def translate(token: re.Match[str]) -> str:
        if token["signs"] is None:
            return wildcards.get(token[0]) or re.escape(token[0])
        return translate_glob(f"[{'!' if token['negated'] else ''}{token['signs']}]")

    return tokens.sub(translate, pattern)


class Stats(Protocol):
    """What `real_path` needs of a sandbox's files."""

    async def stat(self, path: PathLike, *, follow: bool = True) -> FileInfo:
        """Kind, size and target of what is at a path."""


async def real_path(files: Stats, path: PathLike, *, workdir: str) -> FollowedPath:
    """Where a path leads, with every link followed inside the sandbox; `..` is taken from a link's target.

    Names that do not exist are kept as written. Rules that only saw the name a model gave could be bypassed with
    a link, so they see this path as well.

    Raises:
        SandboxPermissionError: a folder on the way can't be read, so the target is unknown.
        SandboxFileNotFoundError: there are too many links.
    """
    resolved: list[str] = []
    left = _split_path(inside(path, workdir=workdir))
    links = 0
    while left:
        part = left.pop(0)
        if part == "..":
            resolved = resolved[:-1]
            continue
        target = await _read_link(files, "/" + "/".join([*resolved, part]))
        if target is None:
            resolved.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise SandboxFileNotFoundError(f"{path} has too many symbolic links", path=str(path), op="real_path")
        if target.startswith("/"):
            resolved = []
        left = [*_split_path(target), *left]
    return FollowedPath("/" + "/".join(resolved))


async def find_real(files: Stats, path: str) -> str:
    """Where an absolute path leads; the path itself if that can't be determined."""
    try:
        return await real_path(files, path, workdir="/")
    except SandboxFileError:
        return path


async def _read_link(files: Stats, path: str) -> str | None:
    try:
        info = await files.stat(path, follow=False)
    except (SandboxFileNotFoundError, SandboxNotFolderError):
        return None
    if info.kind != "link":
        return None
    if info.target is None:
        raise SandboxFileError(f"the target of the link {path} is unknown", path=path, op="real_path")
    return info.target


def _split_path(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def normal_path(path: PathLike, *, workdir: str) -> str:
    """An absolute path, normalised as text: for rules and for messages."""
    return posixpath.normpath(inside(path, workdir=workdir))
