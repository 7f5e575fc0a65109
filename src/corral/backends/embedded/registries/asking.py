"""What pip, uv, npm and apt are configured for, each asked in its own way.

A tool that is missing, slow or broken answers nothing, with the reason. Everything is asked in `/`, where no project's
settings apply and other users can't plant any.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

_SECONDS = 20.0
_MAX_BYTES = 1 << 20
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")

# pip's options as its own `install` command has them: settings files and variables merged. pip from the wheel that
# every Python brings for `ensurepip`, if it is not installed.
_ASK_PIP = """\
import json, sys
try:
    import pip
except ImportError:
    import ensurepip, pathlib
    folders = [getattr(ensurepip, "_WHEEL_PKG_DIR", None), pathlib.Path(ensurepip.__file__).parent / "_bundled"]
    wheels = [str(each) for folder in folders if folder for each in pathlib.Path(folder).glob("pip-*.whl")]
    if not wheels:
        sys.exit("pip is not installed")
    sys.path.insert(0, wheels[0])
from pip._internal.commands import create_command
from pip._internal.configuration import Configuration
from pip._internal.models.index import PyPI
options, _ = create_command("install").parse_args([])
files = [file for _, names in Configuration(isolated=False).iter_config_files() for file in names]
print(json.dumps({
    "no_index": options.no_index, "index": options.index_url, "extra": options.extra_index_urls,
    "links": options.find_links, "trusted": options.trusted_hosts, "files": files,
    "default": PyPI.simple_url, "file_host": PyPI.file_storage_domain,
}))
"""


@dataclass(frozen=True, slots=True)
class PythonIndexes:
    """Where pip or uv look for packages."""

    index: str | None = None
    """None: none but `links`."""
    extra: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    """Folders and pages of links (`--find-links`)."""
    trusted: tuple[str, ...] = ()
    """Hosts whose certificates are not checked."""
    is_default: bool = False
    """The index is the tool's own default, not set by anybody."""
    file_host: str | None = None
    """The host that the default index keeps its files on."""
    files: tuple[str, ...] = ()
    """The settings files that were read, or would be."""
    problem: str = ""

    @property
    def is_set(self) -> bool:
        """True if anything is configured, so that it is not all defaults."""
        return not self.problem and (not self.is_default or bool(self.extra or self.links))


@dataclass(frozen=True, slots=True)
class NpmRegistries:
    """Where npm looks for packages."""

    registry: str | None = None
    scoped: tuple[tuple[str, str], ...] = ()
    """A scope, `@company`, and its registry."""
    logins: tuple[tuple[str, str], ...] = ()
    """The URL that a login is for, without its scheme, and the value of the header Authorization."""
    files: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AptSites:
    """Where apt looks for packages."""

    sites: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    problem: str = ""


def ask_pip() -> PythonIndexes:
    """pip's configuration, of the Python that runs Corral."""
    answer, problem = _ask_json([sys.executable, "-P", "-c", _ASK_PIP])
    if not problem and not isinstance(answer.get("default"), str):
        problem = "pip gave no index"
    if problem:
        return PythonIndexes(problem=problem)
    index = None if answer.get("no_index") else _text(answer.get("index"))
    default = answer["default"].rstrip("/")
    is_default = index is not None and index.rstrip("/") == default
    return PythonIndexes(
        index=index,
        extra=() if answer.get("no_index") else _texts(answer.get("extra")),
        links=_texts(answer.get("links")),
        trusted=_texts(answer.get("trusted")),
        is_default=is_default,
        file_host=_text(answer.get("file_host")) if is_default else None,
        files=_texts(answer.get("files")),
    )


def ask_uv() -> PythonIndexes:
    """uv's settings: its variables, then its files. It has no command that prints them, only one for its default."""
    files = list(_uv_files())
    uv = shutil.which("uv")
    if uv is None:
        return PythonIndexes(problem="uv is not installed")
    index: str | None = None
    extra: list[str] = []
    links: list[str] = []
    no_index = False
    for settings in (_read_uv_variables(os.environ), *map(_read_uv_file, files)):  # the earlier ones come first
        index = index or settings.get("index")
        extra += settings.get("extra", ())
        links += settings.get("links", ())
        no_index = no_index or bool(settings.get("no_index"))
    is_default = index is None and not no_index
    if is_default:
        help_text, _ = _ask([uv, "pip", "install", "--help", "--no-config"])
        found = re.search(r"by\s+default:\s+<(https?://[^>\s]+)>", help_text)
        index = found[1] if found else None
    if no_index:
        index, extra = None, []
    return PythonIndexes(index, tuple(extra), tuple(links), is_default=is_default, files=tuple(files))


def _uv_files() -> Iterator[str]:
    if chosen := os.environ.get("UV_CONFIG_FILE"):
        yield chosen
        return
    home = os.environ.get("XDG_CONFIG_HOME")
    yield str((Path(home) if home else Path.home() / ".config") / "uv/uv.toml")
    for folder in (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"):
        yield f"{folder}/uv/uv.toml"
    yield "/etc/uv/uv.toml"


def _read_uv_variables(env: Mapping[str, str]) -> dict[str, Any]:
    named = [_read_uv_index(each, env) for each in _split(env, "UV_INDEX")]
    return {
        "index": _read_uv_index(env.get("UV_DEFAULT_INDEX", ""), env) or env.get("UV_INDEX_URL"),
        "extra": [*named, *_split(env, "UV_EXTRA_INDEX_URL")],
        "links": _split(env, "UV_FIND_LINKS"),
        "no_index": env.get("UV_NO_INDEX", "").lower() in ("1", "true", "yes"),
    }


def _read_uv_index(text: str, env: Mapping[str, str]) -> str:
    """The URL of `name=URL` or of a URL alone."""
    name, equals, url = text.partition("=")
    return _with_login(url, name, env) if equals and "://" not in name else text


def _with_login(url: str, name: str, env: Mapping[str, str]) -> str:
    """With the login that uv takes from variables for an index of this name."""
    begin = f"UV_INDEX_{re.sub(r'[^A-Z0-9]', '_', name.upper())}"
    user, password = env.get(f"{begin}_USERNAME", ""), env.get(f"{begin}_PASSWORD", "")
    scheme, separator, rest = url.partition("://")
    if not (user or password) or not separator or "@" in rest.partition("/")[0]:
        return url
    return f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{rest}"


def _split(env: Mapping[str, str], name: str) -> list[str]:
    return env.get(name, "").replace(",", " ").split()


def _read_uv_file(path: str) -> dict[str, Any]:
    try:
        values = tomllib.loads(_read(path))
    except (OSError, ValueError):
        return {}
    pip = values.get("pip")
    values = {**values, **(pip if isinstance(pip, dict) else {})}
    indexes = [each for each in values.get("index", ()) if isinstance(each, dict) and isinstance(each.get("url"), str)]
    urls = {
        each["url"]: _with_login(each["url"], name, os.environ)
        if isinstance(name := each.get("name"), str)
        else each["url"]
        for each in indexes
    }
    default = [urls[each["url"]] for each in indexes if each.get("default")]
    return {
        "index": (default or [_text(values.get("index-url"))])[0],
        "extra": [
            *(urls[each["url"]] for each in indexes if not each.get("default")), *_texts(values.get("extra-index-url"))
        ],
        "links": _texts(values.get("find-links")),
        "no_index": values.get("no-index"),
    }  # fmt: skip


def ask_npm() -> NpmRegistries:
    """npm's configuration, with the logins of its settings files, which it shows to nobody."""
    npm = shutil.which("npm")
    if npm is None:
        return NpmRegistries(problem="npm is not installed")
    answer, problem = _ask_json([npm, "config", "list", "--json"])
    if problem:
        return NpmRegistries(problem=problem)
    scoped = [
        (name.removesuffix(":registry"), url)
        for name, url in answer.items()
        if name.startswith("@") and name.endswith(":registry") and isinstance(url, str)
    ]
    files = [path for name in ("userconfig", "globalconfig") if (path := _text(answer.get(name)))]
    logins = {url: value for path in reversed(files) for url, value in _read_npm_logins(path)}
    return NpmRegistries(_text(answer.get("registry")), tuple(sorted(scoped)), tuple(logins.items()), tuple(files))


def _read_npm_logins(path: str) -> Iterator[tuple[str, str]]:
    """From lines like `//host/path/:_authToken=…`."""
    try:
        text = _read(path)
    except (OSError, ValueError):
        return
    parts: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        name, equals, value = (part.strip() for part in line.partition("="))
        url, colon, kind = name.rpartition(":")
        if equals and colon and url.startswith("//"):
            value = re.sub(r"\$\{(\w+)\??\}", lambda found: os.environ.get(found[1], ""), value.strip("\"'"))
            parts.setdefault(url.removeprefix("//"), {})[kind] = value
    for url, known in parts.items():
        if token := known.get("_authToken"):
            yield url, f"Bearer {token}"
        elif login := known.get("_auth"):
            yield url, f"Basic {login}"
        elif "username" in known and "_password" in known:
            yield url, make_basic(known["username"], _decode(known["_password"]))


def _decode(text: str) -> str:
    import base64

    try:
        return base64.b64decode(text).decode()
    except ValueError:
        return ""


def make_basic(user: str, password: str) -> str:
    """The value of the header Authorization for a user and a password."""
    import base64

    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def ask_apt() -> AptSites:
    """The sites of apt's sources."""
    apt = shutil.which("apt-get")
    if apt is None:
        return AptSites(problem="apt is not installed")
    answer, problem = _ask([apt, "indextargets", "--format", "$(SITE)"])
    sites = tuple(dict.fromkeys(line.strip() for line in answer.splitlines() if "://" in line))
    return AptSites(sites, tuple(_apt_files(Path("/etc/apt"))), problem)


def _apt_files(folder: Path) -> Iterator[str]:
    """The folder of sources changes when one is added, and each of them when it is edited in place."""
    sources = folder / "sources.list.d"
    yield from (str(folder / "sources.list"), str(sources))
    if sources.is_dir():
        yield from (str(path) for path in sorted(sources.iterdir()))


def _ask_json(argv: list[str]) -> tuple[dict[str, Any], str]:
    answer, problem = _ask(argv)
    if problem:
        return {}, problem
    try:
        value = json.loads(answer)
    except ValueError:
        value = None
    return (value, "") if isinstance(value, dict) else ({}, f"{Path(argv[0]).name} gave no JSON")


def _ask(argv: list[str]) -> tuple[str, str]:
    """Its output, and why there is none."""
    name = Path(argv[0]).name
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, cwd="/", timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"{name} did not answer in {_SECONDS:g} s"
    except OSError as error:
        return "", f"{name} can't be started: {error.strerror}"
    if done.returncode != 0:
        lines = done.stderr[:_MAX_BYTES].decode("utf-8", "replace").strip().splitlines()
        reason = _LOGIN.sub("", lines[-1])[:200] if lines else f"exit code {done.returncode}"
        return "", f"{name} failed: {reason}"
    return done.stdout[:_MAX_BYTES].decode("utf-8", "replace"), ""


def _read(path: str) -> str:
    with Path(path).open("rb") as file:
        return file.read(_MAX_BYTES).decode()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _texts(value: object) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str) and each) if isinstance(value, list) else ()
