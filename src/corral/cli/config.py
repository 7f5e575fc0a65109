"""Settings: flags, then CORRAL_* variables, then config.toml. This table is the only list of them.

docs/configuration.md shows the same table, and a test compares the two.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from corral.errors import SpecError

Kind = Literal["text", "number", "size", "time", "policy"]
_TYPES: dict[Kind, tuple[tuple[type, ...], str]] = {
    "text": ((str,), "a text in quotes"),
    "policy": ((str, list), 'a text like "packages,a.org", or a list of such texts'),
    "number": ((int, float), "a number"),
    "size": ((int, str), 'bytes, or a text like "512MiB"'),
    "time": ((int, float, str), 'seconds, or a text like "30m"'),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting with its flag, variable, default and meaning."""

    key: str
    flag: str
    kind: Kind
    default: str
    meaning: str

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"CORRAL_{self.key.upper()}"


SETTINGS: dict[str, Setting] = {
    setting.key: setting
    for setting in (
        Setting("backend", "--backend", "text", "embedded", "the backend that creates sandboxes"),
        Setting("url", "--url", "text", "none", "a server to create sandboxes on, such as http://127.0.0.1:3986/api"),
        Setting(
            "data_dir", "--data-dir", "text", "/var/lib/corral as root, else ~/.local/share/corral",
            "where the embedded engine keeps sandboxes, packages and runtimes",
        ),
        Setting(
            "host_folders", "--host-folders", "text", "none",
            "folders of this machine that sandboxes may mount, such as ~/data,~/project:rw",
        ),
        Setting("timeout", "--timeout", "time", "no limit", "timeout of one program"),
        Setting("memory", "--memory", "size", "1GiB", "memory limit of a sandbox"),
        Setting("cpus", "--cpus", "number", "2", "CPUs of a sandbox; 0.5 is half of one"),
        Setting("disk", "--disk", "size", "3GiB", "disk limit of a sandbox"),
        Setting("processes", "--processes", "number", "256", "limit on processes and threads of a sandbox"),
        Setting(
            "network", "--network", "policy", "none",
            "what a sandbox may reach: none, packages, open, or hosts such as a.org,*.b.org:443",
        ),
        Setting("image", "--image", "text", "the host's own /usr", "the image of a sandbox"),
        Setting("workdir", "--workdir", "text", "/home/daytona", "the working folder inside"),
        Setting("venv", "--venv", "text", "none", "a virtual environment of the host, mounted read-only"),
        Setting("lifetime", "--lifetime", "time", "no limit", "maximum lifetime of a detached sandbox"),
        Setting("output_limit", "--output-limit", "size", "4MiB", "how many bytes of each stream `--json` keeps"),
    )
}  # fmt: skip


def config_file() -> Path:
    """`CORRAL_CONFIG`, else config.toml in the user's own configuration folder."""
    if configured := os.environ.get("CORRAL_CONFIG"):
        return Path(configured)
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "corral" / "config.toml"


def read_config() -> dict[str, Any]:
    """The file's settings; empty if the file does not exist.

    Raises:
        SpecError: not TOML, an unknown key, or a value of the wrong type.
    """
    path = config_file()
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if os.environ.get("CORRAL_CONFIG"):
            raise SpecError(
                f"CORRAL_CONFIG names {str(path)!r}, which does not exist", hint="unset it, or create the file"
            ) from None
        return {}
    except OSError as error:
        raise SpecError(f"{path} can't be read: {error.strerror}", hint="check its permissions") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} is not TOML: {error}", hint='write lines such as: memory = "512MiB"') from error
    for key, value in values.items():
        if key not in SETTINGS:
            raise SpecError(f"{path}: unknown setting {key!r}", hint=f"known settings: {', '.join(SETTINGS)}")
        types, wanted = _TYPES[SETTINGS[key].kind]
        if isinstance(value, bool) or not isinstance(value, types):
            raise SpecError(f"{path}: {key} = {value!r} is not a valid value", hint=f"use {wanted}")
    return values


def spread(values: Mapping[str, Any], command: click.Command, context: click.Context) -> dict[str, Any]:
    """The settings in click's format: for each command the values of its options."""
    if isinstance(command, click.Group):
        found = ((name, command.get_command(context, name)) for name in command.list_commands(context))
        return {name: spread(values, child, context) for name, child in found if child is not None}
    several = {parameter.name: parameter.multiple for parameter in command.params}
    return {
        key: [value] if several[key] and isinstance(value, str) else value
        for key, value in values.items()
        if key in several
    }
