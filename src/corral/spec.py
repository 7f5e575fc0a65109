"""The spec of a sandbox: frozen, and validated once, here."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypedDict, Unpack, get_args

from corral.errors import CorralError, InvalidCommandError, SpecError, did_you_mean
from corral.image import Image
from corral.mount import Mount, read_mounts
from corral.network.rules import Rule, RuleError, read_rule
from corral.network.substitution import overlap
from corral.requirement import check_packages
from corral.results import OWNER_LABELS
from corral.secret import Secret, check_known, check_secrets

MAX_ARGUMENT_BYTES = 128 * 1024 - 1
"""The kernel's own limit for one argument or environment entry, less its closing NUL."""
HOME = "/home/daytona"
USER = "daytona"
DEFAULT_OUTPUT_LIMIT_BYTES = 4 * 1024 * 1024
MAX_LABELS_BYTES = 64 * 1024
MAX_ENV_BYTES = 1024 * 1024
"""Labels and variables are stored on the host while the sandbox exists, and do not count in its quota."""
_MAX_TEXT_BYTES = 4096
_MAX_LIST_BYTES = 64 * 1024

_GIB = 1024**3
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


def parse_size(value: int | str, *, what: str, as_docker: bool = False) -> int:
    """Bytes from an int or a text such as "512MB" or "2GiB".

    A letter alone is a power of 1024, as in Docker and most programs: "512m" is "512MiB". "512MB" is a power of 1000;
    with `as_docker`, for values of Docker's options, it is a power of 1024 as well.

    Raises:
        SpecError: not a size.
    """
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?b?)|b?)\s*", value.lower())
        if not match:
            raise SpecError(f"{what}: {value!r} is not a size", hint='use bytes as a number, or text such as "512MiB"')
        base = 1000 if match[3] == "b" and not as_docker else 1024
        return int(float(match[1]) * base ** _POWERS[match[2] or ""])
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(f"{what}: {value!r} is not a size", hint='use bytes as a number, or text such as "512MiB"')
    return value


def show_size(size: float) -> str:
    """Bytes as people read them: 512 B, 1.5 KiB, 240 MiB."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 100 else f"{size:.1f} {unit}"


class _UsualFloat(float):
    """A default limit, which the caller did not set."""


class _UsualInt(int):
    """A default limit, which the caller did not set."""


@dataclass(frozen=True, slots=True)
class Resources:
    """How much a sandbox may use. Sizes may be given as text ("512MiB").

    A limit that is set here and that the machine does not support raises `CapabilityError` when the sandbox is created;
    default limits are enforced as well as the machine can.
    """

    cpus: float = _UsualFloat(2.0)
    memory_bytes: int | str = _UsualInt(1024**3)
    disk_bytes: int | str = _UsualInt(3 * 1024**3)
    processes: int = _UsualInt(256)
    inodes: int = _UsualInt(200_000)
    open_files: int = _UsualInt(4096)

    def __post_init__(self) -> None:
        for name, least in (("memory_bytes", 16 * 2**20), ("disk_bytes", 2**20)):
            size = parse_size(getattr(self, name), what=name)
            if size < least:
                raise SpecError(f"{name}={size} is too small to run anything", hint=f"give at least {least >> 20} MiB")
            object.__setattr__(self, name, size)
        if not (isinstance(self.cpus, int | float) and math.isfinite(self.cpus) and self.cpus >= 0.01):
            raise SpecError(f"cpus={self.cpus!r} is not a valid number of CPUs", hint="use a number such as 0.5 or 2")
        for name, least in (("processes", 1), ("inodes", 16), ("open_files", 16)):
            check_count(getattr(self, name), what=name, least=least)

    @classmethod
    def parse(cls, value: object) -> Resources:
        """Convert a `Resources`, a mapping of its fields, or Daytona's `Resources`.

        A mapping may use `memory` and `disk` instead of the names with `_bytes`: strings are sizes, and numbers are
        GiB, as in Daytona. Missing values and None are the default.

        Raises:
            SpecError: anything else.
        """
        return value if isinstance(value, cls) else cls(**read_resources(value))

    @property
    def asked(self) -> frozenset[str]:
        """The limits that were set explicitly, without the defaults."""
        limits = (each.name for each in fields(self))
        return frozenset(name for name in limits if not isinstance(getattr(self, name), _UsualFloat | _UsualInt))

    def as_usual(self) -> Resources:
        """The same limits as optional ones: unsupported limits are left out instead of raising `CapabilityError`."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "cpus"}
        return Resources(cpus=_UsualFloat(self.cpus), **{name: _UsualInt(value) for name, value in values.items()})

    @property
    def memory(self) -> int:
        """Memory in bytes."""
        return int(self.memory_bytes)

    @property
    def disk(self) -> int:
        """Disk in bytes."""
        return int(self.disk_bytes)


class LimitOptions(TypedDict, total=False):
    """Keywords of `resize`: the limits to change. None changes nothing."""

    cpus: float | None
    memory_bytes: int | None
    disk_bytes: int | None
    processes: int | None


def check_keywords(options: Mapping[str, object], kind: type, method: str) -> None:
    """Reject unknown keywords, which Python accepts where a method has `**options: Unpack[kind]`. Raises: TypeError."""
    unknown = options.keys() - kind.__annotations__.keys()
    if unknown:
        raise TypeError(f"{method}() got an unexpected keyword argument {min(unknown)!r}")


def given_limits(limits: LimitOptions) -> dict[str, Any]:
    """The limits to change. Raises: TypeError for an unknown keyword."""
    check_keywords(limits, LimitOptions, "resize")
    return {name: value for name, value in limits.items() if value is not None}


_OTHER_NAMES = {"cpu": "cpus", "memory": "memory_bytes", "disk": "disk_bytes"}


def read_resources(value: object, *, without: Collection[str] = ()) -> dict[str, Any]:
    """The fields of `Resources` that were given, parsed as by `Resources.parse`. Raises: SpecError.

    Names in `without` are skipped: the caller passes them on unchanged.
    """
    known = [each.name for each in fields(Resources)]
    hint = f"give Resources(…), or a mapping of {', '.join(known)}"
    if isinstance(value, Resources):
        given = {name: getattr(value, name) for name in known}
    elif isinstance(value, Mapping):
        given = dict(value)
    elif hasattr(value, "cpu") and hasattr(value, "memory"):
        given = {name: getattr(value, name, None) for name in (*_OTHER_NAMES, "gpu")}
    else:
        raise SpecError(f"resources: {value!r} has no cpus, memory or disk", hint=hint)
    found: dict[str, Any] = {}
    for name, wanted in given.items():
        if wanted is None or name in without:
            continue
        target = _OTHER_NAMES.get(name, name)
        if target not in known or target in found:
            raise SpecError(f"resources: {name!r} is unknown or duplicated", hint=hint)
        in_gib = target != name and target != "cpus" and isinstance(wanted, int | float)
        found[target] = int(wanted * _GIB) if in_gib else wanted
    return found


NetworkMode = Literal["none", "packages", "allow", "open"]
PACKAGES_RULE = "packages"
"""The entry of a list that stands for the package registries of the host."""


@dataclass(frozen=True, slots=True)
class NetworkLimits:
    """How much a sandbox may use of its network. What goes beyond is refused, and shows as denied."""

    connections: int = 256
    """Open at the same time."""
    attempts_per_second: float = 50.0
    """New connections and lookups, on average; ten seconds' worth may come at once."""
    bytes_per_second: int | str | None = None
    """In both directions together. None: unlimited."""
    total_bytes: int | str | None = None
    """In both directions together, while the sandbox exists. None: unlimited."""

    def __post_init__(self) -> None:
        check_count(self.connections, what="connections")
        check_timeout(self.attempts_per_second, what="attempts_per_second", error=SpecError)
        for name in ("bytes_per_second", "total_bytes"):
            if (value := getattr(self, name)) is not None:
                size = parse_size(value, what=name)
                check_count(size, what=name)
                object.__setattr__(self, name, size)


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """What a sandbox may reach. `NetworkPolicy.parse` takes what `network=` takes.

    - `none`: nothing. The default.
    - `packages`: the package registries that this machine is configured for, and `hosts` if there are any.
    - `allow`: only `hosts`; an empty list permits nothing.
    - `open`: the internet, but never private, loopback, link-local and metadata addresses nor those of the host, unless
      they are in `hosts`.

    An entry of `hosts` is a name (`example.org`), the names below one (`*.example.org`), an address or a range
    (`192.0.2.0/24`), each with a port if only that one is meant (`example.org:443`).
    """

    mode: NetworkMode = "none"
    hosts: tuple[str, ...] = ()
    limits: NetworkLimits = field(default_factory=NetworkLimits)

    def __post_init__(self) -> None:
        if self.mode not in get_args(NetworkMode):
            raise SpecError(f"network: {self.mode!r} is not a mode", hint=_NETWORK_HINT)
        given = (self.hosts,) if isinstance(self.hosts, str) else tuple(self.hosts)
        if given and self.mode == "none":
            raise SpecError("network: 'none' takes no hosts", hint=_NETWORK_HINT)
        hosts = tuple(dict.fromkeys(str(_read_rule(host)) for host in given))
        if word := next((host for host in hosts if _is_no_host(host)), None):
            raise SpecError(f"network: {word!r} is not a host", hint=_NETWORK_HINT)
        object.__setattr__(self, "hosts", hosts)

    def __str__(self) -> str:
        """As `network=` takes it."""
        return ",".join((*(() if self.mode == "allow" else (self.mode,)), *self.hosts)) or "none"

    @property
    def permits_something(self) -> bool:
        """False for `none`, and for an empty list."""
        return self.mode in ("packages", "open") or bool(self.hosts)

    @classmethod
    def parse(cls, value: str | Sequence[str] | NetworkPolicy | None) -> NetworkPolicy:
        """From "none", "packages", "open", or hosts: "a.org,*.b.org:443" or a list. "packages" and "open" may stand
        among hosts. An empty list permits nothing.

        Raises:
            SpecError: also for an empty name among the hosts.
        """
        if isinstance(value, NetworkPolicy):
            return value
        if value is None:
            return cls()
        if isinstance(value, str):
            entries = [part.strip() for part in value.split(",")]
        elif isinstance(value, Sequence) and all(isinstance(part, str) for part in value):
            entries = [part.strip() for part in value]
        else:
            entries = [""]
        if not all(entries):
            raise SpecError(f"network={value!r} is not a valid policy", hint=_NETWORK_HINT)
        modes: dict[str, NetworkMode] = {"none": "none", "packages": "packages", "open": "open"}
        named = [modes[entry.lower()] for entry in entries if entry.lower() in modes]
        hosts = tuple(entry for entry in entries if entry.lower() not in modes)
        if len(set(named)) > 1 or (hosts and "none" in named):
            raise SpecError(f"network={value!r} asks for more than one thing", hint=_NETWORK_HINT)
        return cls(named[0] if named else "allow", hosts)

    def describe(self, *, most: int | None = None) -> str:
        """What is permitted, for a reader: "nothing", or "package registries, example.org"; at most so many hosts."""
        said = {"none": "nothing", "packages": "package registries", "open": "the internet", "allow": ""}[self.mode]
        shown = self.hosts[:most]
        left = len(self.hosts) - len(shown)
        return (", ".join(filter(None, (said, *shown))) or "nothing") + (f" and {left} more" if left else "")

    def to_json(self) -> dict[str, Any]:
        """As JSON, for `from_json`. Usual limits are left out."""
        told: dict[str, Any] = {"mode": self.mode, "hosts": list(self.hosts)}
        if self.limits != NetworkLimits():
            told["limits"] = {each.name: getattr(self.limits, each.name) for each in fields(self.limits)}
        return told

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> NetworkPolicy:
        """The inverse of `to_json`. Raises: SpecError, KeyError, TypeError for anything else."""
        return cls(told["mode"], tuple(told["hosts"]), NetworkLimits(**told.get("limits") or {}))


_NETWORK_HINT = 'use "none", "packages", "open", or hosts such as "a.org,*.b.org:443"'
_NO_HOSTS = frozenset(
    (*get_args(NetworkMode), "all", "any", "internet", "full", "bridge", "host", "default", "on", "off", "true",
     "false")
)  # fmt: skip
"""Words that are a mode here or elsewhere, and so not meant as the name of a host: that would permit nothing."""


def _is_no_host(word: str) -> bool:
    """True for those words, and for what is nearly "packages"."""
    near = difflib.get_close_matches(word, [PACKAGES_RULE], cutoff=0.8)
    return word in _NO_HOSTS or (bool(near) and word.isalpha())


def _read_rule(host: str) -> Rule:
    try:
        return read_rule(host)
    except (RuleError, AttributeError) as error:
        raise SpecError(f"network: {error}", hint=_NETWORK_HINT) from None


def check_reach(secrets: Sequence[Secret], network: NetworkPolicy) -> None:
    """Raises: SpecError for a secret with a host that the network policy can't permit.

    Not for `open`, which permits every name, nor for `packages`, which permits what this machine is configured for.
    """
    if network.mode not in ("none", "allow"):
        return
    permitted = [read_rule(host) for host in network.hosts]
    for secret in secrets:
        for host in secret.hosts:
            if not any(overlap(read_rule(host), rule) for rule in permitted):
                allowed = ",".join((*network.hosts, host))
                raise SpecError(
                    f"secret {secret.name!r} is for {host}, which network={str(network)!r} does not permit",
                    hint=f"permit it: network={allowed!r}",
                )


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The maximum lifetime of a sandbox. None: until its owner ends (if detached: unlimited)."""

    seconds: float | None = None
    idle_seconds: float | None = None
    keep_on_failure: bool = False
    """If the `with` block ends with an exception, detach the sandbox instead of deleting it, for inspection."""

    def __post_init__(self) -> None:
        for name in ("seconds", "idle_seconds"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise SpecError(f"lifetime {name}={value!r} is not a duration", hint="use seconds above 0, or None")


@dataclass(frozen=True, slots=True)
class Spec:
    """What a sandbox is created with."""

    image: str | Image | None = None
    """The image: a name in a registry, a recipe, or (for `daytona`) the vendor's own object."""
    resources: Resources = field(default_factory=Resources)
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # it may hold secrets
    workdir: str = HOME
    lifetime: Lifetime = field(default_factory=Lifetime)
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    """Python packages by name and version, mounted read-only: downloaded on the host as wheels, and cached.

    URLs, paths and options are rejected: pip would build what they lead to, and so run its code on the host.
    """
    venv: str | os.PathLike[str] | None = None
    """A virtual environment of the host whose packages are mounted read-only."""
    ephemeral: bool = False
    """Keep written files in memory instead of on disk."""
    hostname: str = "corral"
    exec_timeout: float | None = None
    """The timeout of calls without their own."""
    output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES
    """How many bytes of each stream a result keeps."""
    snapshot: str | None = None
    """Start with the files of a snapshot, by id or name; everything else comes from this spec."""
    client_token: str | None = None
    """Makes create idempotent: the same token returns the same sandbox."""
    secrets: tuple[Secret, ...] = field(default=(), repr=False)
    """Values for named hosts that the sandbox itself never holds."""
    mounts: tuple[Mount, ...] = ()
    """Volumes and folders of the host. A mapping will do for volumes: {"/data": "my-volume", "/in": "other:ro"}."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "resources", Resources.parse(self.resources))
        object.__setattr__(self, "network", NetworkPolicy.parse(self.network))
        object.__setattr__(self, "env", check_env(self.env))
        object.__setattr__(self, "labels", check_labels(self.labels))
        check_sizes(self.labels, self.env)
        object.__setattr__(self, "secrets", check_secrets(self.secrets, self.env))
        object.__setattr__(self, "packages", check_packages(self.packages))
        object.__setattr__(self, "mounts", read_mounts(self.mounts))
        _check_bytes(self.network.hosts, limit_bytes=_MAX_LIST_BYTES, what="hosts of the network")
        for name in ("workdir", "image", "snapshot", "client_token"):
            _check_bytes([getattr(self, name)], limit_bytes=_MAX_TEXT_BYTES, what=name)
        workdir = self.workdir if isinstance(self.workdir, str) else ""
        if not workdir.startswith("/") or "\0" in workdir or ".." in workdir.split("/"):
            raise SpecError(f"workdir={self.workdir!r} is not an absolute path", hint=f"for example {HOME}")
        check_name(self.name)
        if not isinstance(self.hostname, str) or not _HOSTNAME.fullmatch(self.hostname):
            raise SpecError(
                f"hostname={self.hostname!r} is not a valid host name", hint="letters, digits and '-', at most 63"
            )
        if self.snapshot is not None and (not isinstance(self.snapshot, str) or not self.snapshot):
            raise SpecError(f"snapshot={self.snapshot!r} is not a valid snapshot", hint="use an id or a name, or None")
        check_timeout(self.exec_timeout, what="exec_timeout", error=SpecError)
        check_count(self.output_limit_bytes, what="output_limit_bytes")


def as_another(spec: Spec) -> Spec:
    """The spec of a fork: without name and token, and owned by the caller even if a server owns the first."""
    labels = {name: value for name, value in spec.labels.items() if name not in OWNER_LABELS}
    return replace(spec, name=None, client_token=None, labels=labels)


def check_name(name: str | None) -> None:
    """A name of a sandbox or a snapshot, or None. Raises: SpecError."""
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise SpecError(f"name={name!r} is not a valid name", hint="letters, digits, '.', '_' and '-', at most 63")


def check_timeout(value: float | None, *, what: str, error: type[CorralError]) -> None:
    """A timeout is None or a finite number of seconds above 0; raises `error` otherwise."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise error(f"{what}={value!r} is not a duration", hint="use seconds above 0, or None for no limit")


def check_count(value: object, *, what: str, least: int = 1, error: type[CorralError] = SpecError) -> None:
    """A count is a whole number of at least that; raises `error` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise error(f"{what}={value!r} is not a count", hint=f"give a whole number of at least {least}")


def check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Check a mapping of strings to strings. Raises: SpecError."""
    if not isinstance(labels, Mapping):
        raise SpecError(f"labels must be a mapping, not {type(labels).__name__}", hint="for example labels={'a': '1'}")
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise SpecError(f"the label {name!r} must map a string to a string", hint="use strings: labels={'a': '1'}")
    return dict(labels)


def check_sizes(labels: Mapping[str, str], env: Mapping[str, str]) -> None:
    """Check the size of labels and variables, which are stored. Raises: SpecError."""
    _check_bytes([*labels, *labels.values()], limit_bytes=MAX_LABELS_BYTES, what="labels")
    _check_bytes([*env, *env.values()], limit_bytes=MAX_ENV_BYTES, what="environment variables")


def _check_bytes(texts: Collection[object], *, limit_bytes: int, what: str) -> None:
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts if isinstance(text, str))
    if size > limit_bytes:
        raise SpecError(
            f"{what}: {size} bytes exceed the limit of {limit_bytes}",
            hint="write large values to a file inside with files.write",
        )


def check_env(env: Mapping[str, str], *, error: type[CorralError] = SpecError) -> dict[str, str]:
    """Names without '=' and NUL, values without NUL; raises `error` otherwise. Values are never shown."""
    checked: dict[str, str] = {}
    if not isinstance(env, Mapping):
        raise error(f"env must be a mapping, not {type(env).__name__}", hint="for example env={'NAME': 'value'}")
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise error(f"{name!r} is not a valid environment variable name", hint="no '=', no NUL, not empty")
        if not isinstance(value, str) or "\0" in value:
            raise error(f"the value of environment variable {name!r} is not a string", hint="use a str without NUL")
        checked[name] = value
    return checked


def check_argv(command: str | Sequence[str]) -> tuple[str, ...]:
    """An argv from a list, or for /bin/sh from a text.

    Raises:
        InvalidCommandError: empty, with a NUL, too long, or not made of texts.
    """
    if isinstance(command, str):
        if not command.strip():
            raise InvalidCommandError("the command is empty", hint="pass a shell command or a list of arguments")
        argv: tuple[str, ...] = ("/bin/sh", "-c", command)
    elif isinstance(command, bytes) or not isinstance(command, Sequence):
        raise InvalidCommandError(f"a command must be a string or a list of strings, not {type(command).__name__}")
    else:
        argv = tuple(command)
    if not argv or not argv[0]:
        raise InvalidCommandError("the command is empty", hint="pass a shell command or a list of arguments")
    for index, argument in enumerate(argv):
        if not isinstance(argument, str):
            raise InvalidCommandError(f"argument {index} is {type(argument).__name__}, not str", hint="use str(...)")
        if "\0" in argument:
            raise InvalidCommandError(f"argument {index} has a NUL byte: {argument[:40]!r}", hint="remove it")
        check_size(argument, f"argument {index}")
    return argv


def check_size(text: str, what: str) -> None:
    """One argument or variable must fit into what the kernel takes. Raises: InvalidCommandError."""
    size = len(text.encode("utf-8", "surrogateescape"))
    if size > MAX_ARGUMENT_BYTES:
        raise InvalidCommandError(
            f"{what} has {size} bytes; the kernel's limit is {MAX_ARGUMENT_BYTES}",
            hint="pass it as stdin=, or write it to a file first",
        )


class SpecOptions(TypedDict, total=False):
    """The keywords that `Sandbox` and `AsyncSandbox` take. Each is a field of `Spec`, with these conveniences:
    `resources` may be a mapping, `network` a string, `lifetime` seconds, and `keep_on_failure` is a keyword."""

    image: str | Image | None
    resources: Resources | Mapping[str, Any] | None
    network: NetworkPolicy | str | Sequence[str] | None
    env: Mapping[str, str] | None
    workdir: str
    lifetime: Lifetime | float | None
    keep_on_failure: bool
    name: str | None
    labels: Mapping[str, str] | None
    packages: Sequence[str]
    venv: str | os.PathLike[str] | None
    ephemeral: bool
    hostname: str
    exec_timeout: float | None
    output_limit_bytes: int
    snapshot: str | None
    client_token: str | None
    secrets: Sequence[Secret]
    mounts: Sequence[Mount] | Mapping[str, object] | None


def make_spec(**spec_options: Unpack[SpecOptions]) -> Spec:
    """A Spec from keywords. Raises: SpecError for an unknown keyword or an invalid value."""
    unknown = sorted(set(spec_options) - set(SpecOptions.__annotations__))
    if unknown:
        known = SpecOptions.__annotations__
        hint = did_you_mean(unknown[0], known, otherwise=f"known are: {', '.join(known)}")
        limits = [field.name for field in fields(Resources)]
        if limit := next((name for name in limits if unknown[0] in (name, name.removesuffix("_bytes"))), ""):
            hint = f"limits go into resources: resources=Resources({limit}=…)"
        raise SpecError(f"unknown option {unknown[0]!r}", hint=hint)
    lifetime = spec_options.get("lifetime")
    keep = spec_options.get("keep_on_failure", False)
    if not isinstance(lifetime, Lifetime):
        lifetime = Lifetime(seconds=lifetime, keep_on_failure=keep)
    elif keep:
        lifetime = Lifetime(lifetime.seconds, lifetime.idle_seconds, keep_on_failure=True)
    given: dict[str, Any] = {**spec_options, "lifetime": lifetime}
    given.pop("keep_on_failure", None)
    for name in ("resources", "network", "env", "labels", "mounts"):
        if given.get(name) is None:
            given.pop(name, None)
    spec = Spec(**given)
    check_known(spec.secrets)
    check_reach(spec.secrets, spec.network)
    return spec


def choose_spec(spec: Spec | None, spec_options: SpecOptions) -> Spec:
    """The spec that was given, or one from keywords. Raises: TypeError for both; SpecError."""
    if spec is not None and spec_options:
        raise TypeError(f"give either spec= or {', '.join(sorted(spec_options))}, not both")
    return spec if spec is not None else make_spec(**spec_options)
