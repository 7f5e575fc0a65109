"""Runs scripts as an ordinary user, with everything that user needs in a separate folder.

The tests often run as root in a checkout, a virtual environment and a Python that other users can't read. So the user
gets copies: of src and of the distributions that are asked for, and a home. An ordinary user is taken as it is.
"""

import importlib.metadata
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SYSTEM_PYTHON = Path("/usr/bin/python3")

# Free on every distribution we know (system users end below 1000, people begin there, subordinate ranges at 100000).
FIRST_UID = 12340
LAST_UID = 12999

# How long processes of a finished test may take to go before they count as left behind.
GRACE_SECONDS = 30.0


class NoOrdinaryUserError(Exception):
    """This machine gives us no way to run Python >= 3.11 as an ordinary user; the message says why."""


@dataclass(frozen=True, slots=True)
class OrdinaryUser:
    """A uid with a home, a Python it may run, and a copy of the sources it may read."""

    uid: int
    home: Path
    python: Path
    library: Path

    def run(
        self,
        script: str,
        *,
        args: Iterable[str] = (),
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run script, Python source text, in the home folder. The exit code is the caller's to judge."""
        file = self.home / "script.py"
        file.write_text(script, encoding="utf-8")
        file.chmod(0o644)
        return self.run_argv([str(self.python), str(file), *args], env=env, timeout=timeout)

    def run_argv(
        self, argv: Iterable[str], *, env: Mapping[str, str] | None = None, stdin: str = "", timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run argv in the home folder. Nothing of the tests' own environment is passed on."""
        return subprocess.run(
            [*_become(self.uid), *argv],
            cwd=self.home,
            env=self._make_env(env),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(
        self, argv: Iterable[str], *, env: Mapping[str, str] | None = None, **pipes: Any
    ) -> subprocess.Popen[Any]:
        """Start argv in the home folder, to be talked to; `pipes` are as for `subprocess.Popen`."""
        return subprocess.Popen([*_become(self.uid), *argv], cwd=self.home, env=self._make_env(env), **pipes)

    def _make_env(self, env: Mapping[str, str] | None) -> dict[str, str]:
        clean = {
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "PYTHONPATH": str(self.library),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self.home / "tmp"),
            "USER": f"user{self.uid}",
        }
        return clean | dict(env or {})

    def list_processes(self) -> list[int]:
        """Return the pids of all live processes with this uid. Only meaningful when the uid was made for the test."""
        return list(_list_processes(self.uid))


@contextmanager
def open_ordinary_user(*, distributions: Iterable[str] = ("click", "packaging")) -> Iterator[OrdinaryUser]:
    """Make an ordinary user for a test.

    distributions are installed packages to copy for it, with all that they require. The default is what a bare install
    has; with "pytest" and "anyio" it can run tests. On leaving, its folder is removed and processes that it left are
    killed; if there were any, the test fails.

    Raises:
        NoOrdinaryUserError: there is no setpriv, or no Python that the user may run.
        AssertionError: processes of the user were still there after a grace period.
    """
    python = find_python()
    made = os.geteuid() == 0
    uid = _find_free_uid() if made else os.geteuid()
    folder = Path(tempfile.mkdtemp(prefix="corral-user-", dir=_find_public_folder()))
    try:
        folder.chmod(0o755)
        library = folder / "library"
        shutil.copytree(ROOT / "src", library)  # with what is compiled: the times of the files are kept
        for name in _find_closure(distributions):
            _copy_distribution(name, library=library)
        _make_readable(library)
        home = folder / "home"
        (home / "tmp").mkdir(parents=True)
        if made:
            for path in (home, home / "tmp"):
                os.chown(path, uid, uid)
        home.chmod(0o700)
        yield OrdinaryUser(uid=uid, home=home, python=python, library=library)
        if made:
            left = _wait_until_gone(uid)
            assert not left, f"processes of the ordinary user were left behind: {left}"
    finally:
        if made:
            for pid in _list_processes(uid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # it went by itself meanwhile
        shutil.rmtree(folder, ignore_errors=not made)


@cache
def find_python() -> Path:
    """Return a Python >= 3.11 that an ordinary user may run: the running one if possible, else the system's.

    Raises:
        NoOrdinaryUserError: there is none, or there is no setpriv to become that user.
    """
    if os.geteuid() != 0:
        return Path(sys.executable)
    if shutil.which("setpriv") is None:
        raise NoOrdinaryUserError("setpriv is not on PATH (Debian package util-linux)")
    for python in (Path(sys.executable), SYSTEM_PYTHON):
        # Through env: setpriv's own exec may still reach what its children can't, such as a Python in root's home.
        argv = [
            *_become(FIRST_UID),
            "/usr/bin/env",
            str(python),
            "-c",
            "import sys; sys.exit(sys.version_info < (3, 11))",
        ]
        done = subprocess.run(argv, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode == 0:
            return python
    raise NoOrdinaryUserError(f"an ordinary user can run neither the tests' Python nor {SYSTEM_PYTHON} >= 3.11")


def _become(uid: int) -> list[str]:
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]


def _find_free_uid() -> int:
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    # FIRST_UID is the probes'. The rest is spread by pid, so that two runs on one machine don't meet.
    span = LAST_UID - FIRST_UID
    for step in range(span):
        uid = FIRST_UID + 1 + (os.getpid() + step) % span
        if uid not in taken and not any(_list_processes(uid)):
            return uid
    raise NoOrdinaryUserError(f"no free uid between {FIRST_UID + 1} and {LAST_UID}")


def _list_processes(uid: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            status = (entry / "status").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # ended while we looked
        found = re.search(r"^Uid:\t(\d+)", status, re.MULTILINE)
        if found and int(found[1]) == uid and not is_dead(status):
            yield int(entry.name)


def is_dead(status: str) -> bool:
    """Whether a process has ended: one whose first thread alone has ended is shown as a zombie as well."""
    return "\nState:\tZ" in status and "\nThreads:\t1\n" in status


def _wait_until_gone(uid: int) -> list[int]:
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := list(_list_processes(uid))) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _find_public_folder() -> str:
    """TMPDIR may be a private folder; an ordinary user must be able to reach its own."""
    for folder in (Path(tempfile.gettempdir()), Path("/var/tmp"), Path("/tmp")):
        if all(part.stat().st_mode & 0o001 for part in (folder, *folder.parents)):
            return str(folder)
    raise NoOrdinaryUserError("no temporary folder that every user may enter")


def _find_closure(names: Iterable[str]) -> set[str]:
    """Return names and what they require here, extras aside."""
    found: set[str] = set()
    queue = list(names)
    while queue:
        name = re.sub(r"[-_.]+", "-", queue.pop()).lower()
        if name in found:
            continue
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # required on another platform only
        found.add(name)
        queue += [match[0] for text in requirements if "extra ==" not in text and (match := re.match(r"[\w.-]+", text))]
    return found


def _copy_distribution(name: str, *, library: Path) -> None:
    for file in importlib.metadata.files(name) or []:
        if ".." in file.parts or "__pycache__" in file.parts:
            continue  # console scripts and byte code
        target = library / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(file.locate()), target)


def _make_readable(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
