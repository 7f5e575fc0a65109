"""What the tests of the command line share."""

import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from corral.backends.memory import MemoryBackend
from corral.cli import main
from corral.cli.config import SETTINGS
from corral.client import registry


@dataclass(frozen=True)
class Ended:
    """How a command line ended."""

    code: int
    stdout: str
    stderr: str


Corral = Callable[..., Ended]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the person who runs the tests."""
    for setting in SETTINGS.values():
        if setting.key != "data_dir":
            monkeypatch.delenv(setting.variable, raising=False)
    for name in ("CORRAL_CONFIG", "CORRAL_DEBUG", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    # Set first, so that what a command itself puts there is taken back.
    monkeypatch.setenv("CORRAL_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def corral(capfd: pytest.CaptureFixture[str]) -> Iterator[Corral]:
    """Run a command line in this process, with its input from a pipe or /dev/null."""
    saved = os.dup(0)

    def call(*arguments: str, stdin: bytes | None = None) -> Ended:
        source = os.open(os.devnull, os.O_RDONLY)
        if stdin is not None:
            os.close(source)
            source, writer = os.pipe()
            with io.FileIO(writer, "w") as file:
                file.write(stdin)
        os.dup2(source, 0)
        os.close(source)
        code = main(arguments)
        captured = capfd.readouterr()
        return Ended(code, captured.out, captured.err)

    yield call
    os.dup2(saved, 0)
    os.close(saved)


@pytest.fixture
def memory() -> Iterator[MemoryBackend]:
    """The memory backend that `--backend memory` gets."""
    backend = MemoryBackend()
    before = registry._opened.get("memory")
    registry._opened["memory"] = backend
    yield backend
    del registry._opened["memory"]
    if before is not None:
        registry._opened["memory"] = before
