"""Every block of the README and of the pages in docs/ runs, and shows its real output.

A ```python block is a whole program. If an ```output block follows it, that is what it prints. Each is run twice: as
the current user, and as an ordinary user. A comment `<!-- needs: network -->` right above a block is the marker
needs_network; one that `needs: a server` is run by tests/server, one that `needs: a framework` by tests/adapters, one
that `needs: matplotlib` where that is fetched already, in tests/server/test_toolbox_charts.py. In
```console blocks the commands of `corral` are run, and the output below them is compared.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.project import ROOT, Block, read_blocks
from support.user import OrdinaryUser
from support.warm import run_program

README = ROOT / "README.md"
PAGES = [README, ROOT / "ARCHITECTURE.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
ELSEWHERE = {"a server", "a framework", "matplotlib"}
BLOCKS = [block for page in PAGES if page.exists() for block in read_blocks(page)]


def find_needs(block: Block) -> list[str]:
    """What a comment right above the block says that it needs."""
    above = block.file.read_text(encoding="utf-8").splitlines()[: block.line - 1]
    found = re.fullmatch(r"<!-- needs: ([a-z, ]+) -->", above[-1].strip()) if above else None
    return [name.strip() for name in found[1].split(",")] if found else []


def choose_blocks(*languages: str) -> list[object]:
    chosen = [block for block in BLOCKS if block.language in languages and not ELSEWHERE & set(find_needs(block))]
    marks = {block: [getattr(pytest.mark, f"needs_{name}") for name in find_needs(block)] for block in chosen}
    return [pytest.param(block, marks=marks[block], id=str(block)) for block in chosen]


def find_shown(block: Block) -> str | None:
    """What the page says that a Python block prints: the next block, if it is one of output."""
    later = [other for other in BLOCKS if other.file == block.file and other.line > block.line]
    return later[0].text if later and later[0].language == "output" else None


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a terminal block, and what the block shows below it."""

    text: str
    shown: str


def read_commands(block: Block) -> list[Command]:
    """Take a block apart. In ```console a command begins with "$ "; in ```sh every line is one."""
    commands: list[Command] = []
    lines = iter(block.text.splitlines())
    for line in lines:
        if block.language == "console" and not line.startswith("$ "):
            if commands:
                last = commands[-1]
                commands[-1] = Command(last.text, f"{last.shown}{line}\n")
            continue
        text = line.removeprefix("$ ")
        while text.endswith("\\"):
            text = f"{text[:-1]} {next(lines).removeprefix('> ').strip()}"
        if text.strip() and not text.startswith("#"):
            commands.append(Command(text, ""))
    return commands


def runs_corral(text: str) -> bool:
    # Also at the end of a pipe: echo 'print(1)' | corral run -
    return re.search(r"(^|[|;&] *)corral ", text) is not None


def make_environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "NO_COLOR": "1", "COLUMNS": "100"}


def matches(shown: str, real: str) -> bool:
    """A line "..." or "…" stands for any lines, and within a line for any text."""
    pattern = ""
    for line in shown.strip().splitlines():
        if line.strip() in {"...", "…"}:
            pattern += r"(?:.*\n)*?"
        else:
            parts = re.split(r"\.\.\.|…", line.rstrip())
            pattern += ".*".join(re.escape(part) for part in parts) + r"[ \t]*\n"
    return re.fullmatch(pattern, real.strip() + "\n") is not None


def test_readme_is_there_and_fits_on_a_few_screens() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150


def test_readme_shows_python_and_the_shell() -> None:
    blocks = read_blocks(README)
    commands = [command for block in blocks if block.language == "console" for command in read_commands(block)]
    assert any(block.language == "python" for block in blocks)
    assert any(runs_corral(command.text) for command in commands)


def judge(block: Block, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    shown = find_shown(block)
    if shown is not None:
        assert matches(shown, done.stdout), f"shown:\n{shown}\nreal:\n{done.stdout}"


@pytest.mark.parametrize("block", choose_blocks("python"))
def test_python_block_runs_and_prints_what_is_shown(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "snippet.py"
    file.write_text(block.text, encoding="utf-8")
    judge(block, run_program(file, cwd=tmp_path, env=make_environment()))


@pytest.mark.needs_user
@pytest.mark.needs_userns
@pytest.mark.parametrize("block", choose_blocks("python"))
def test_python_block_runs_for_an_ordinary_user(block: Block, ordinary_user: OrdinaryUser) -> None:
    judge(block, ordinary_user.run(block.text))


@pytest.mark.parametrize("block", choose_blocks("console", "sh", "bash", "shell"))
def test_terminal_block_runs_and_shows_what_comes_out(block: Block, tmp_path: Path) -> None:
    for command in read_commands(block):
        if not runs_corral(command.text):
            continue
        done = subprocess.run(
            ["bash", "-c", command.text],
            cwd=tmp_path,
            env=make_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, f"$ {command.text}\n{done.stdout}"
        if command.shown.strip():
            both = f"$ {command.text}\nshown:\n{command.shown}\nreal:\n{done.stdout}"
            assert matches(command.shown, done.stdout), both


def test_extras_that_are_named_exist() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = set(tomllib.load(file)["project"]["optional-dependencies"])
    text = README.read_text(encoding="utf-8")
    (line,) = re.findall(r"# with extras: (.*)", text)
    named = set(line.split(", ")) | {
        name for call in re.findall(r'"\.\[([\w,-]+)\]"', text) for name in call.split(",")
    }
    assert named <= extras
    assert "`make test PACKAGES=no`" in text


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_that_are_named_exist(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    text = (ROOT / name).read_text(encoding="utf-8")
    named = {shlex.split(call)[0] for call in re.findall(r"(?:`|^\$ |^)make ([a-z-]+)", text, re.MULTILINE)}
    assert named
    assert named <= targets
