"""Options that several commands share, and what they mean together."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from corral.cli.config import SETTINGS
from corral.errors import CorralError, SpecError

if TYPE_CHECKING:
    from corral.mount import Mount
    from corral.secret import Secret

F = TypeVar("F", bound=Callable[..., Any])

KEY_VARIABLES = ("CORRAL_API_KEY", "DAYTONA_API_KEY")
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Time(click.ParamType):  # type: ignore[type-arg] # generic only since click 8.4, and 8.1 will do
    """Seconds, or a number with a unit: 90, 1.5, 500ms, 30m, 2h, 1d."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse a duration in seconds."""
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", str(value).lower())
        seconds = float(match[1]) * _SECONDS[match[2]] if match and match[2] in _SECONDS else math.nan
        if not math.isfinite(seconds) or seconds <= 0:
            self.fail(f"{value!r} is not a time above 0; write seconds, or 500ms, 30m, 2h, 1d", param, ctx)
        return seconds


TIME = Time()


def setting_option(key: str, *names: str, **attributes: Any) -> Callable[[F], F]:
    """An option whose value may also come from a CORRAL_* variable or from config.toml."""
    setting = SETTINGS[key]
    attributes.setdefault("help", f"{setting.meaning[0].upper()}{setting.meaning[1:]}. Default: {setting.default}.")
    return click.option(setting.flag, key, *names, envvar=setting.variable, **attributes)


def _complete_backend(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from corral.client.registry import backend_names

    return [name for name in backend_names() if name.startswith(incomplete)]


def _complete_language(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from corral.languages import language_names

    return [name for name in language_names() if name.startswith(incomplete)]


def complete_sandbox(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids and names of the existing sandboxes."""
    import asyncio

    from corral.client.registry import get_backend

    try:
        infos = asyncio.run(get_backend(context.params.get("backend") or "embedded").list())
    except (CorralError, OSError):
        return []  # no completion if it fails
    items = [CompletionItem(info.name, help=info.sandbox_id) for info in infos if info.name]
    items += [CompletionItem(info.sandbox_id, help=info.name) for info in infos]
    return [item for item in items if str(item.value).startswith(incomplete)]


def complete_file(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files and folders of this machine, which the shell itself finds."""
    return [CompletionItem(incomplete, type="file")]


def complete_end(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """One end of a copy: files; or sandboxes, if no file has that prefix."""
    if not incomplete or "/" in incomplete or any(path.name.startswith(incomplete) for path in Path().iterdir()):
        return complete_file(context, parameter, incomplete)
    return [CompletionItem(f"{item.value}:") for item in complete_sandbox(context, parameter, incomplete)]


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep the value for the backend's own callback, which is called later."""
    context.meta[f"corral.{parameter.name}"] = value


def _choose_backend(context: click.Context, parameter: click.Parameter, value: str) -> Any:
    """The name of the backend; or, with --url, the backend that talks to that server."""
    from click.core import ParameterSource

    url = context.meta.get("corral.url")
    if not url:
        return value
    given = context.get_parameter_source("backend")
    if value != "daytona" and given in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
        raise click.UsageError(f"--url and --backend {value} can't be combined", context)
    server = open_server(url, context.meta.get("corral.key"))
    context.call_on_close(lambda: close_server(server))
    return server


def close_server(server: Any) -> None:
    """Close the connections of a server's backend, at the end of a command."""
    import asyncio

    asyncio.run(server.aclose())


def open_server(url: str, key: str | None) -> Any:
    """The backend for a server that speaks Daytona's protocol. Raises: SpecError."""
    from urllib.parse import urlsplit

    from corral.client.registry import make_backend

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise SpecError(f"--url {url}: not a URL", hint="for example http://127.0.0.1:3986/api")
    if not key:
        raise SpecError(
            "--url needs a key", hint=f"pass --key, or set {KEY_VARIABLES[0]}; `corral key create` creates one"
        )
    return make_backend("daytona", api_url=url if parts.path.strip("/") else f"{url.rstrip('/')}/api", api_key=key)


class Policy(click.ParamType):  # type: ignore[type-arg] # generic only since click 8.4, and 8.1 will do
    """A part of a network policy."""

    name = "policy"
    envvar_list_splitter = ","

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, which `NetworkPolicy.parse` checks with the others."""
        return str(value)


def complete_policy(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The words of a network policy. Hosts are the user's own."""
    before, comma, last = incomplete.rpartition(",")
    return [
        CompletionItem(f"{before}{comma}{word}", help=meaning)
        for word, meaning in NETWORK_WORDS.items()
        if word.startswith(last) and not (comma and word == "none")
    ]


NETWORK_WORDS = {
    "none": "nothing",
    "packages": "the package registries that this machine is configured for",
    "open": "the internet, without private addresses",
}


def join_policy(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> str | None:
    """The policy as one text; None if none was given."""
    return ",".join(values) if values else None


network_option = setting_option(
    "network", type=Policy(), multiple=True, metavar="POLICY", callback=join_policy, shell_complete=complete_policy,
    help="What it may reach: none (default), packages (the registries this machine is configured for), open (the "
         "internet), or hosts such as a.org,*.b.org:443; may be repeated.",
)  # fmt: skip


def ceiling_option(help_text: str) -> Callable[[F], F]:
    """`--network` of the server: never from a variable or from config.toml, which are about one's own sandboxes."""
    return click.option(
        "--network", "ceiling", type=Policy(), multiple=True, metavar="POLICY", callback=join_policy,
        shell_complete=complete_policy, help=help_text,
    )  # fmt: skip


sandbox_argument = click.argument("sandbox_id", metavar="ID", shell_complete=complete_sandbox)
language_option = click.option(
    "--language", "-l", metavar="NAME", shell_complete=_complete_language,
    help="python, bash, sh, javascript, typescript. Default: from the file's name or its #! line; python for -c.",
)  # fmt: skip
timeout_option = setting_option("timeout", type=TIME, metavar="TIME")
user_option = click.option("--user", "-u", metavar="NAME", help="Run as this user: daytona, root, nobody or a user id.")
git_settings_option = click.option(
    "--git-settings", is_flag=True,
    help="Copy git's settings and hooks out as well. Your next git command there runs them.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead, for scripts.")


def together(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in the order of the help text."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


backend_option = together(
    setting_option("backend", "-b", default="embedded", metavar="NAME", shell_complete=_complete_backend,
                   callback=_choose_backend),
    setting_option("url", metavar="URL", is_eager=True, expose_value=False, callback=_remember),
    click.option("--key", metavar="KEY", envvar=KEY_VARIABLES, is_eager=True, expose_value=False,
                 callback=_remember, show_envvar=False,
                 help=f"The API key for --url; better set in {' or '.join(KEY_VARIABLES)}."),
)  # fmt: skip
environment_options = together(
    click.option("--env", "-e", "env", multiple=True, metavar="NAME=VALUE",
                 help="An environment variable; NAME alone copies its current value."),
    click.option("--env-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), multiple=True,
                 metavar="FILE", help="A file with lines NAME=VALUE; # starts a comment."),
)  # fmt: skip
secret_options = together(
    click.option("--secret", "secrets", multiple=True, metavar="NAME@HOST",
                 help="Let programs use the variable NAME of this shell without seeing its value, in HTTPS requests to "
                      "HOST. NAME@HOST,HOST/HEADER: more hosts, and another header than Authorization."),
    click.option("--secret-file", "secret_files", multiple=True, metavar="FILE",
                 type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
                 help="Take values of --secret from lines NAME=VALUE of a file instead; - is standard input."),
)  # fmt: skip
spec_option_flags = together(
    setting_option("image", metavar="IMAGE"),
    network_option,
    setting_option("memory", metavar="SIZE"),
    setting_option("cpus", type=float, metavar="N"),
    setting_option("disk", metavar="SIZE"),
    setting_option("processes", type=int, metavar="N"),
    environment_options,
    secret_options,
    setting_option("workdir", "-w", metavar="PATH"),
    click.option("--package", "-p", "packages", multiple=True, metavar="NAME",
                 help="A Python package, as for pip; downloaded on the host, mounted read-only."),
    setting_option("venv", metavar="DIR", shell_complete=complete_file),
    click.option("--volume", "-v", "volumes", multiple=True, metavar="NAME[/FOLDER]:PATH[:ro]",
                 help="Show a volume, or a folder of it, at a path inside; may be repeated. `:exclusive` or "
                      "`:ro,exclusive`: no other sandbox may use it meanwhile. `corral volume create` creates one."),
    click.option("--mount", "mounts", multiple=True, metavar="DIR:PATH[:MODE]",
                 help="Show a folder of this machine, if --host-folders allows it. MODE: ro (default), rw, copy, "
                      "overlay."),
    click.option("--ephemeral", is_flag=True, help="Keep written files in memory instead of on disk."),
)  # fmt: skip
"""The options of a new sandbox."""


def read_spec_options(given: dict[str, Any]) -> dict[str, Any]:
    """The keywords of `make_spec` from what `spec_option_flags` collected.

    Raises:
        SpecError: an invalid value.
    """
    from corral.spec import HOME, Resources

    return {
        "image": given.get("image"),
        "network": given.get("network"),
        "resources": Resources(**read_limits(given.get)),
        "env": read_environment(given.get("env", ()), given.get("env_file", ())),
        "workdir": given.get("workdir") or HOME,
        "packages": tuple(given.get("packages", ())),
        "venv": given.get("venv"),
        "ephemeral": bool(given.get("ephemeral")),
        "mounts": read_mounts(given.get("volumes", ()), given.get("mounts", ())),
        "secrets": read_secrets(given.get("secrets", ()), given.get("secret_files", ())),
    }


def read_secrets(texts: tuple[str, ...], files: tuple[Path, ...] = ()) -> tuple[Secret, ...]:
    """From NAME@HOST[,HOST…][/HEADER], with values from the files, or else from the variables of this process.

    Raises:
        SpecError: malformed, or there is no value. What is shown is never a value, also if one was given by mistake.
    """
    from corral.secret import Secret

    values = _read_files(files, flag="--secret-file")
    secrets = []
    for text in texts:
        name, at, rest = text.partition("@")
        if not at or not name.isidentifier():
            hint = "write NAME@HOST; the value comes from the variable NAME, or from --secret-file"
            if "=" in name:
                hint += ": the arguments of a command are seen by others of this machine"
            raise SpecError("--secret is malformed", hint=hint)
        value = values.get(name, os.environ.get(name))
        if value is None:
            hint = f"set it, or give a file with the line {name}=… by --secret-file"
            raise SpecError(f"--secret {name}: there is no variable of this name", hint=hint)
        hosts, _, header = rest.partition("/")
        secrets.append(Secret(name, value, hosts.split(","), header or "Authorization"))
    return tuple(secrets)


def read_mounts(volumes: tuple[str, ...], folders: tuple[str, ...]) -> tuple[Mount, ...]:
    """From NAME[/FOLDER]:PATH[:ro][,exclusive] and DIR:PATH[:MODE]. Raises: SpecError."""
    from corral.mount import Mount

    mounts = []
    for text in volumes:
        form = "NAME:PATH, NAME:PATH:ro, NAME/FOLDER:PATH or NAME:PATH:exclusive"
        source, path, wanted = _split_mount(text, what="--volume", form=form)
        name, _, subpath = source.partition("/")
        words = set(wanted.split(",")) if wanted else set()
        if words - {"ro", "rw", "exclusive"} or words >= {"ro", "rw"}:
            raise SpecError(f"--volume {text}: {wanted!r} is not a mode", hint=f"write {form}")
        mode: Any = "ro" if "ro" in words else "rw"
        mounts.append(Mount(path, volume=name, subpath=subpath, mode=mode, exclusive="exclusive" in words))
    for text in folders:
        folder, path, mode = _split_mount(text, what="--mount", form="DIR:PATH or DIR:PATH:MODE")
        mounts.append(Mount(path, source=str(Path(folder).expanduser().absolute()), mode=mode))
    return tuple(mounts)


def _split_mount(text: str, *, what: str, form: str) -> tuple[str, str, Any]:
    """The source, the path inside, and the mode or None. The source may contain colons."""
    source, colon, path = text.rpartition(":")
    mode = None
    if colon and not path.startswith("/"):
        mode = path
        source, colon, path = source.rpartition(":")
    if not source or not colon:
        raise SpecError(f"{what} {text}: malformed", hint=f"write {form}")
    return source, path, mode


def read_limits(value_of: Callable[[str], Any]) -> dict[str, Any]:
    """The keywords of `Resources` from the flags that are set. Raises: SpecError."""
    from corral.spec import parse_size

    limits = {name: value for name in ("cpus", "processes") if (value := value_of(name)) is not None}
    for name in ("memory", "disk"):
        if (value := value_of(name)) is not None:
            limits[f"{name}_bytes"] = parse_size(value, what=f"--{name}")
    return limits


def read_environment(pairs: tuple[str, ...], files: tuple[Path, ...] = ()) -> dict[str, str]:
    """Variables from files and from the command line, which takes precedence.

    Raises:
        SpecError: a file that is not UTF-8, a malformed line, or a name that is not set here.
    """
    found = _read_files(files, flag="--env-file")
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            if name not in os.environ:
                raise SpecError(f"--env {name}: the variable is not set", hint=f"pass a value: --env {name}=…")
            value = os.environ[name]
        found[name] = value
    return found


def _read_files(files: tuple[Path, ...], *, flag: str) -> dict[str, str]:
    """Variables from files of lines NAME=VALUE; `-` is standard input. Raises: SpecError."""
    from corral.cli.stdio import read_all_input
    from corral.forge.dotenv import parse_lines

    found: dict[str, str] = {}
    for file in files:
        try:
            text = (read_all_input() if str(file) == "-" else file.read_bytes()).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SpecError(f"{flag} {file.name} is not UTF-8: {error.reason}", hint="save it as UTF-8") from None
        for number, name, line_value in parse_lines(text):
            if line_value is None:
                shown = f"{name!r} has no value" if flag == "--env-file" else "not NAME=VALUE"  # it may be a value
                raise SpecError(f"{file.name}, line {number}: {shown}", hint="write NAME=VALUE")
            found[name] = line_value
    return found


def read_labels(pairs: tuple[str, ...]) -> dict[str, str]:
    """Labels from KEY=VALUE. Raises: SpecError."""
    labels = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise SpecError(f"--label {pair}: malformed label", hint="write KEY=VALUE")
        labels[name] = value
    return labels
