"""Declarative images in the language of a Dockerfile, for backends that can build images."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from corral.errors import SpecError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]*")
_PYTHON = re.compile(r"3\.\d{1,2}(\.\d{1,3})?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Image:
    """An image, line by line. Each method returns a new image with one more line; images with the same text are equal.

        Image.debian_slim(python="3.12").apt_install("git").pip_install("numpy>=2").env({"MODE": "test"})

    The embedded backend does not support images: use `packages=` and `venv=` for Python packages there.
    """

    dockerfile: str

    def __post_init__(self) -> None:
        if not isinstance(self.dockerfile, str) or "\0" in self.dockerfile or not _begins(self.dockerfile):
            raise SpecError("the text is not a Dockerfile", hint="it begins with FROM: Image.base('debian:12')")

    @classmethod
    def base(cls, name: str) -> Self:
        """Start from an image of a registry. Raises: SpecError."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SpecError(f"{name!r} is not a valid image name", hint="for example debian:12")
        return cls(f"FROM {name}\n")

    @classmethod
    def debian_slim(cls, python: str = "3.12") -> Self:
        """Start from a small Debian with this Python. Raises: SpecError."""
        if not isinstance(python, str) or not _PYTHON.fullmatch(python):
            raise SpecError(f"python={python!r} is not a version", hint="for example '3.12'")
        return cls(f"FROM python:{python}-slim\n")

    @classmethod
    def from_dockerfile(cls, path_or_text: str | os.PathLike[str]) -> Self:
        """Use a Dockerfile unchanged: its text, or its path. Raises: SpecError."""
        if isinstance(path_or_text, str) and _begins(path_or_text):
            return cls(path_or_text)
        try:
            return cls(Path(path_or_text).read_text(encoding="utf-8"))
        except (OSError, UnicodeError, ValueError) as error:
            raise SpecError(
                "the Dockerfile can't be read", hint=f"{type(error).__name__}; give its text, or the path of one"
            ) from error

    def pip_install(self, *packages: str) -> Self:
        """Install Python packages."""
        return self.run(f"python3 -m pip install --no-cache-dir {_words(packages, 'package')}")

    def apt_install(self, *packages: str) -> Self:
        """Install packages of Debian or Ubuntu."""
        words = _words(packages, "package")
        return self.run(
            f"apt-get update && apt-get install -y --no-install-recommends {words} && rm -rf /var/lib/apt/lists/*"
        )

    def run(self, *commands: str) -> Self:
        """Run shell commands while the image is built."""
        if not commands or not all(isinstance(text, str) and text.strip() and "\0" not in text for text in commands):
            raise SpecError("no command given", hint="pass shell commands")
        # As JSON: a text with line ends or quotes stays one instruction, and can't add another.
        return self._with("".join(f"RUN {json.dumps(['/bin/sh', '-c', text])}\n" for text in commands))

    def env(self, variables: Mapping[str, str]) -> Self:
        """Set variables for later steps and for all programs. They are readable in the image."""
        lines = []
        for name, value in variables.items():
            if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
                raise SpecError(f"{name!r} is not a valid environment variable name", hint="letters, digits and '_'")
            if not isinstance(value, str) or any(character in value for character in "\0\r\n"):
                raise SpecError(f"the value of {name!r} is not a single line of text")
            quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
            lines.append(f'ENV {name}="{quoted}"\n')
        return self._with("".join(lines))

    def workdir(self, path: str) -> Self:
        """Set the working directory of later steps."""
        if not isinstance(path, str) or not path.startswith("/") or any(character in path for character in "\0\r\n$"):
            raise SpecError(f"workdir {path!r} is not an absolute path", hint="for example /workspace")
        return self._with(f"WORKDIR {path}\n")

    def _with(self, lines: str) -> Self:
        text = self.dockerfile if self.dockerfile.endswith("\n") else f"{self.dockerfile}\n"
        return type(self)(text + lines)


def _begins(text: str) -> bool:
    """True for a Dockerfile: the first instruction is FROM (or ARG, which may come before it)."""
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            return line.split()[0].upper() in ("FROM", "ARG") and len(line.split()) > 1
    return False


def _words(packages: tuple[str, ...], what: str) -> str:
    if not packages:
        raise SpecError(f"no {what} given", hint="pass names")
    for package in packages:
        # URLs are accepted: they are downloaded and built inside the image, not on the host. Options are rejected: use
        # `run` for a whole command.
        if not isinstance(package, str) or not re.match(r"[A-Za-z0-9]", package) or not package.isprintable():
            raise SpecError(f"{package!r} is not a {what}", hint="write it as on the command line: 'numpy>=2'")
    return " ".join(map(shlex.quote, packages))
