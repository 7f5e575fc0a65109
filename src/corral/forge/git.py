"""Git on a repository that may come from a stranger: nothing in it may run on this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from corral.errors import SpecError

GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "--no-pager")
_OTHERS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE")
"""In a git hook these name the repository. Here the path does."""


def run_git(path: Path, *words: str) -> str:
    """The output of a git command. Raises: SpecError."""
    try:
        done = _run(path, *words, check=True)
    except FileNotFoundError as error:
        raise SpecError("git is not installed", hint="install git, or give the folder itself") from error
    except subprocess.CalledProcessError as error:
        reason = _find_reason(str(error.stderr))
        hint = "check that it is a repository, and has the commit"
        if "dubious ownership" in reason:
            hint = "if you trust its owner: git config --global --add safe.directory <its path>"
        raise SpecError(f"{str(path)!r}: {reason}", hint=hint) from error
    return done.stdout


def git_environment(path: Path) -> dict[str, str]:
    """The environment in which the contents of commits may be read: without the filters of the repository itself.

    A filter is a command that git runs over files. Those of the user's own configuration (large files) stay.
    """
    done = _run(path, "config", "--show-scope", "--null", "--get-regexp", r"^filter\.", check=False)
    told = done.stdout.split("\0")
    filters = {
        key.partition("\n")[0].removeprefix("filter.").rpartition(".")[0]
        for scope, key in zip(told[::2], told[1::2], strict=False)
        if scope in ("local", "worktree")
    }
    found = _closed_environment()
    count = int(found.get("GIT_CONFIG_COUNT", "0"))
    for name in sorted(filters):
        for key, value in (("smudge", ""), ("process", ""), ("required", "false")):
            found[f"GIT_CONFIG_KEY_{count}"] = f"filter.{name}.{key}"
            found[f"GIT_CONFIG_VALUE_{count}"] = value
            count += 1
    return found | {"GIT_CONFIG_COUNT": str(count)}


def _run(path: Path, *words: str, check: bool) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GIT, "-C", str(path), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=check,
        errors="surrogateescape", env=_closed_environment(),
    )  # fmt: skip


def _closed_environment() -> dict[str, str]:
    """Our environment, with fetching disabled: the repository would choose how objects are fetched."""
    found = {name: value for name, value in os.environ.items() if name not in _OTHERS}
    return found | {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}


def _find_reason(said: str) -> str:
    """The reason in git's output: the line that says `fatal`, else the last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    fatal = [line.removeprefix("fatal: ") for line in lines if line.startswith("fatal: ")]
    return (fatal or lines[-1:] or ["git failed"])[0]
