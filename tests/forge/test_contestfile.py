"""`contest.toml`: everything that may be in it, and that nothing else may."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from corral.errors import SpecError
from corral.forge.contestfile import _TOP, find_contest_file, read_contest_file
from corral.forge.settings import Settings
from corral.forge.sources import CommandSource, FolderSource, ScriptSource
from corral.spec import Resources
from support.project import ROOT, read_blocks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("candidates/a.py", "candidates/b.sh", "candidates/_helper.py", "tree/main.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("pass")
    return tmp_path


def read(folder: Path, text: str) -> object:
    return read_contest_file(write(folder, text))


def write(folder: Path, text: str) -> Path:
    path = folder / "contest.toml"
    path.write_text(text)
    return path


def test_everything_that_can_be_said(folder: Path) -> None:
    text = """
        objective = "a goal"
        judge = "judge.py:judge"
        backend = "docker"
        artifacts = "runs"
        output = "out.json"
        jobs = 3
        repeat = 5
        seed = 7
        pin = true
        retries = 2
        setup = "true"
        meter_seconds = 1.5
        env = { ALL = "1" }
        resources = { cpus = 0.5, memory = "128MiB", processes = 20 }
        timeouts = { run = 3, judge = 9.5 }
        take = { files = 10, file_bytes = "1MiB" }
        [[candidates]]
        script = "candidates/a.py"
        id = "one"
        name = "The One"
        description = "first"
        packages = ["numpy"]
        network = "example.org"
        image = "python:3.12"
        env = { OWN = "2" }
        resources = { cpus = 2, disk = "1GiB" }
        [[candidates]]
        folder = "tree"
        [[candidates]]
        command = "echo hello > {output}"
        id = "shell"
    """
    found = read_contest_file(write(folder, text))
    one, tree, shell = found.candidates
    assert (found.objective, found.judge, found.backend) == ("a goal", "judge.py:judge", "docker")
    assert found.artifacts == folder / "runs"
    assert found.settings["timeouts"].run == 3
    assert found.settings["take"].file_bytes == 1024 * 1024
    assert found.settings["resources"] == Resources(cpus=0.5, memory_bytes="128MiB", processes=20)
    assert {key: found.settings[key] for key in ("jobs", "repeat", "seed", "pin", "retries", "setup", "output")} == {
        "jobs": 3, "repeat": 5, "seed": 7, "pin": True, "retries": 2, "setup": "true", "output": "out.json",
    }  # fmt: skip
    assert (one.id, one.name, one.packages, one.network_policy.hosts) == (
        "one",
        "The One",
        ("numpy",),
        ("example.org",),
    )
    assert one.env == {"ALL": "1", "OWN": "2"}
    assert one.resources == Resources(cpus=2, disk_bytes="1GiB")
    assert isinstance(one.source, ScriptSource)
    assert isinstance(tree.source, FolderSource)
    assert tree.env == {"ALL": "1"}
    assert isinstance(shell.source, CommandSource)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", ["a"]),
        ('candidates = ["candidates/*"]', ["a", "b"]),
        ('candidates = ["candidates/b.sh", "tree"]', ["b", "tree"]),
    ],
)
def test_candidates_by_path(folder: Path, text: str, ids: list[str]) -> None:
    assert [each.id for each in read_contest_file(write(folder, text)).candidates] == ids


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("objectif = 'x'", "unknown key 'objectif' (did you mean 'objective'?)"),
        (
            "[[candidates]]\ncommand = 'x'\npackages = ['evil @ file:///x']",
            "candidates 1: 'evil @ file:///x' is not a package name",
        ),
        ("[timeouts]\nrunn = 3", "timeouts: unknown key 'runn' (did you mean 'run'?)"),
        ("[resources]\nmemry = 3", "resources: unknown key 'memry' (did you mean 'memory'?)"),
        ("[[candidates]]\nscirpt = 'a.py'", "candidates 1: unknown key 'scirpt' (did you mean 'script'?)"),
        ("[[candidates]]\nid = 'x'", "give one of script, folder, git, command"),
        ("[[candidates]]\nscript = 'a.py'\nfolder = 'tree'", "give one of"),
        ("[[candidates]]\nscript = 'missing.py'", "candidates 1: no such file"),
        ("[[candidates]]\nscript = 'candidates/a.py'\nid = '../x'", "is not a candidate's id"),
        ("[[candidates]]\nscript = 'candidates/a.py'\ncommand = 'x'", "a script has no command"),
        ("candidates = []", "candidates is not a list"),
        ("candidates = [3]", "candidates 1 is neither a path nor a table"),
        ("candidates = ['nothing/*']", "nothing matches 'nothing/*'"),
        ("repeat = 0", "repeat=0"),
        ("objective = 3", "objective = 3 is not a text"),
        ("timeouts = 3", "timeouts is not a table"),
        ("[timeouts]\nrun = 'long'", "timeouts: timeout run='long' is not a time"),
        ("seed = 'x'", "seed='x' is not a seed"),
        ("output = '../x'", "is not a file name"),
        ("objective = ", "is not TOML"),
    ],
)
def test_what_can_not_be_is_said_with_the_key(folder: Path, text: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(folder, text)
    assert words in str(caught.value)
    assert "contest.toml" in str(caught.value)


def test_no_candidates_at_all(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there are no candidates"):
        read(tmp_path, "objective = 'x'")


def test_file_is_found_by_itself_and_by_its_folder(folder: Path) -> None:
    assert find_contest_file(folder) is None
    path = write(folder, "")
    assert find_contest_file(folder) == find_contest_file(path) == path
    assert find_contest_file(folder / "candidates" / "a.py") is None


def test_page_shows_a_file_that_can_be_read_and_has_every_key(folder: Path) -> None:
    blocks = [block.text for block in read_blocks(ROOT / "docs" / "forge.md") if block.language == "toml"]
    whole, table = blocks
    found = read_contest_file(write(folder, whole))
    assert [each.id for each in found.candidates] == ["a", "b"]
    (folder / "agents" / "numbers").mkdir(parents=True)
    assert read_contest_file(write(folder, table)).candidates[0].id == "numbers"
    for key in _TOP:
        assert re.search(rf"(?m)^\[?{key}\b", whole), key
    page = (ROOT / "docs" / "forge.md").read_text(encoding="utf-8")
    for each in fields(Settings):
        assert f"| `{each.name}` |" in page or each.name == "backend", each.name
