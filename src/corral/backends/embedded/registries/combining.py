"""From what the tools answered to rules for a sandbox's network and to settings for programs inside. Pure, but for a
look at folders of packages."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from corral.backends.embedded.registries.asking import AptSites, NpmRegistries, PythonIndexes, make_basic
from corral.backends.embedded.registries.folders import FolderError, find_folder, show_folder
from corral.backends.embedded.registries.registry import MISSING, Registries, Source
from corral.engine.base import ToolFolder
from corral.network.rules import Rule, RuleError, read_address, read_name, read_rule
from corral.network.settings import Alias, GateCredential

ALIAS_SUFFIX = "registry.internal"
"""The top-level domain `internal` is reserved for names that nobody else has."""
NPM_SETTINGS_AT = "/home/daytona/.npmrc"
_PORTS = {"http": 80, "https": 443}


@dataclass(slots=True)
class _Findings:
    """What is collected, registry by registry."""

    logins: Callable[[str], tuple[str, str] | None]
    npm_logins: tuple[tuple[str, str], ...] = ()
    rules: dict[str, None] = field(default_factory=dict)
    credentials: dict[str, GateCredential] = field(default_factory=dict)
    aliases: dict[str, Alias] = field(default_factory=dict)
    folders: dict[Path, tuple[str, list[ToolFolder]]] = field(default_factory=dict)
    sources: dict[tuple[str, str], Source] = field(default_factory=dict)

    def add(self, tool: str, text: str) -> str | None:
        """The same registry as a URL for inside, without its login; None if it can't be reached from there."""
        folder = find_folder(text)
        if folder is not None:
            return self._add_folder(tool, folder)
        try:
            parts = urlsplit(text)
            port = parts.port or _PORTS.get(parts.scheme)
        except ValueError:
            return None
        if port is None or not parts.hostname:
            self._note(tool, _without_login(parts), f"{MISSING}: not a URL of http or https")
            return None
        login = self._find_login(tool, parts)
        try:
            host, note = self._permit(parts.hostname, port, named=login is not None)
        except RuleError:
            self._note(tool, _without_login(parts), f"{MISSING}: not a valid host")
            return None
        if login is not None:
            rule, secure = str(Rule(host, port)), parts.scheme == "https"
            self.credentials.setdefault(rule, GateCredential(rule, "Authorization", login, secure))
        shown = f"[{host}]" if ":" in host else host
        plain = parts._replace(netloc=shown if parts.port is None else f"{shown}:{port}")
        self._note(tool, _without_login(parts), note)
        return urlunsplit(plain)

    def _permit(self, host: str, port: int, *, named: bool) -> tuple[str, str]:
        """The host as it is reached inside, and a note; `named`: it must be a name. Raises: RuleError."""
        address = read_address(host)
        note = ""
        if host == "localhost" or host.endswith(".localhost") or (address and (named or address.is_loopback)):
            # The port is in the name, since there may be several.
            name = f"{re.sub('[^a-z0-9]+', '-', host.lower()).strip('-')}-{port}.{ALIAS_SUFFIX}"
            note = f"inside as {name}"
        else:
            name = str(address or read_name(host) or host)
        rule = str(read_rule(str(Rule(name, port))))
        self.rules[rule] = None
        if address is None or note:
            self.aliases[rule] = Alias(name, port, str(address or host), port)
        return name, note

    def _find_login(self, tool: str, parts: SplitResult) -> str | None:
        """The value of the header Authorization."""
        if parts.username is not None:
            return make_basic(unquote(parts.username), unquote(parts.password or ""))
        if tool == "npm":
            place = f"{parts.netloc}{parts.path}".rstrip("/") + "/"
            return next((value for url, value in self.npm_logins if place.startswith(url.rstrip("/") + "/")), None)
        found = self.logins(parts.hostname or "")
        return make_basic(*found) if found is not None else None

    def _add_folder(self, tool: str, folder: Path) -> str | None:
        if folder not in self.folders:
            try:
                self.folders[folder] = show_folder(folder, len(self.folders))
            except FolderError as error:
                self._note(tool, str(folder), f"{MISSING}: {error}")
                return None
        at, _ = self.folders[folder]
        self._note(tool, str(folder), f"inside at {at}")
        return f"file://{at}"

    def _note(self, tool: str, url: str, note: str) -> None:
        self.sources.setdefault((tool, url), Source(tool, url, note))


def combine(
    pip: PythonIndexes,
    uv: PythonIndexes,
    npm: NpmRegistries,
    apt: AptSites,
    *,
    logins: Callable[[str], tuple[str, str] | None] = lambda host: None,
) -> Registries:
    """The registries of these answers. `logins` gives the user and the password for a host, if it has any."""
    found = _Findings(logins)
    # Each of the two uses what the other does, if only that is configured: a mirror for one is meant for both, and
    # whoever set one does not mean that private names are asked for at the default.
    follows = uv.is_set and not pip.is_set
    env = _add_python(found, "pip", uv if follows else pip, _PIP)
    env |= _add_python(found, "uv", uv, _UV) if uv.is_set else _add_python(found, "pip", pip, _UV)
    more, settings = _add_npm(found, npm)
    for site in apt.sites:
        found.add("apt", site)
    answers = {"pip": pip.problem, "uv": uv.problem, "npm": npm.problem, "apt": apt.problem}
    return Registries(
        rules=tuple(found.rules),
        credentials=tuple(found.credentials.values()),
        aliases=tuple(found.aliases.values()),
        env=env | more,
        folders=tuple(dict.fromkeys(folder for _, folders in found.folders.values() for folder in folders)),
        files={NPM_SETTINGS_AT: settings} if settings else {},
        sources=tuple(found.sources.values()),
        problems=tuple(f"{tool}: {problem}" for tool, problem in answers.items() if problem),
    )


@dataclass(frozen=True, slots=True)
class _Names:
    """The variables of a tool."""

    index: str
    extra: str
    links: str
    no_index: str
    trusted: str


_PIP = _Names("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_TRUSTED_HOST")
_UV = _Names("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "UV_NO_INDEX", "UV_INSECURE_HOST")


def _add_python(found: _Findings, tool: str, indexes: PythonIndexes, names: _Names) -> dict[str, str]:
    """The variables of these indexes."""
    if indexes.problem:
        return {}
    env: dict[str, str] = {}
    inside = found.add(tool, indexes.index) if indexes.index is not None else None
    if inside is None:
        env[names.no_index] = "1"
    elif not indexes.is_default:
        env[names.index] = inside
    if indexes.file_host is not None:
        found.add(tool, f"https://{indexes.file_host}")
    extra = [url for each in indexes.extra if (url := found.add(tool, each)) is not None]
    links = [url for each in indexes.links if (url := found.add(tool, each)) is not None]
    if extra:
        env[names.extra] = " ".join(extra)
        env.pop(names.no_index, None)
        if inside is None:  # there is always an index: the first takes the place of the one that is not there
            env[names.index] = extra[0]
    if links:
        env[names.links] = " ".join(links)
    # Plain HTTP is what the host uses there; pip asks for it to be said, but for its own loopback.
    known = {urlsplit(url).hostname: urlsplit(url).netloc for url in (inside, *extra, *links) if url is not None}
    trusted = [netloc for host, netloc in known.items() if host and host.endswith(ALIAS_SUFFIX)]
    if trusted := [*indexes.trusted, *trusted]:
        env[names.trusted] = " ".join(dict.fromkeys(trusted))
    return env


def _add_npm(found: _Findings, npm: NpmRegistries) -> tuple[dict[str, str], str]:
    """The variables for npm, and the settings that no variable can hold."""
    if npm.problem or npm.registry is None:
        return {}, ""
    found.npm_logins = npm.logins
    env: dict[str, str] = {}
    inside = found.add("npm", npm.registry)
    if inside is not None:
        env["npm_config_registry"] = inside
    scoped = {scope: url for scope, each in npm.scoped if (url := found.add("npm", each)) is not None}
    if any((urlsplit(url).hostname or "").endswith(ALIAS_SUFFIX) for url in (inside or "", *scoped.values())):
        env["npm_config_replace_registry_host"] = "always"  # its answers name the host's loopback
    return env, "".join(f"{scope}:registry={url}\n" for scope, url in scoped.items())


def _without_login(parts: SplitResult) -> str:
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
