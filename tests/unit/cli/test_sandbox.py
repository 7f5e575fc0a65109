"""`corral sandbox`, on the memory backend."""

import json
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.backends.memory import MemoryBackend
from corral.cli.transfer import CopyEnd, check_ends
from corral.errors import SpecError
from corral.results import Denial

Corral = Callable[..., Any]
HERE = ("--backend", "memory")


@pytest.fixture
def box(corral: Corral, memory: MemoryBackend) -> str:
    ended = corral("sandbox", "create", *HERE, "--name", "box", "--label", "a=b")
    assert ended.code == 0
    return str(ended.stdout.strip())


def test_created_sandboxes_are_listed_and_removed(corral: Corral, memory: MemoryBackend, box: str) -> None:
    listed = json.loads(corral("sandbox", "list", *HERE, "--json").stdout)
    assert [(entry["sandbox_id"], entry["name"], entry["labels"]) for entry in listed] == [(box, "box", {"a": "b"})]
    shown = corral("sandbox", "list", *HERE).stdout
    assert box in shown
    assert "a=b" in shown
    assert corral("sandbox", "list", *HERE, "-q").stdout == f"{box}\n"
    assert corral("sandbox", "rm", *HERE, "box").stdout == "box\n"
    assert corral("sandbox", "list", *HERE).stdout == "no sandboxes\n"


def test_a_list_in_a_pipe_is_whole(corral: Corral, memory: MemoryBackend) -> None:
    label = f"purpose={'long ' * 20}end"
    assert corral("sandbox", "create", *HERE, "--label", label).code == 0
    assert label in corral("sandbox", "list", *HERE).stdout


def test_removing_what_is_gone(corral: Corral, memory: MemoryBackend, box: str) -> None:
    ended = corral("sandbox", "rm", *HERE, box, "nobody")
    assert (ended.code, ended.stdout) == (1, f"{box}\n")
    assert "'nobody'" in ended.stderr
    assert corral("sandbox", "rm", *HERE, "--force", "nobody").code == 0
    assert corral("sandbox", "rm", *HERE).code == 2
    assert corral("sandbox", "rm", *HERE, "--all", "box").code == 2
    assert corral("sandbox", "rm", *HERE, "--all").code == 0


def test_exec_takes_a_shell_text_or_an_argv(corral: Corral, memory: MemoryBackend, box: str) -> None:
    assert corral("sandbox", "exec", *HERE, "box", "echo one; exit 3").code == 3
    ended = corral("sandbox", "exec", *HERE, "box", "--", "echo", "a  b", "$HOME")
    assert (ended.code, ended.stdout) == (0, "a  b $HOME\n")
    said = json.loads(corral("sandbox", "exec", *HERE, "--json", "box", "--", "echo", "x").stdout)
    assert (said["stdout"], said["exit_code"]) == ("x\n", 0)


def test_exec_passes_input_only_when_asked(corral: Corral, memory: MemoryBackend, box: str) -> None:
    assert corral("sandbox", "exec", *HERE, "-i", "box", "cat", stdin=b"in\n").stdout == "in\n"
    assert corral("sandbox", "exec", *HERE, "box", "cat", stdin=b"in\n").stdout == ""


def test_exec_in_nothing_is_125(corral: Corral, memory: MemoryBackend) -> None:
    ended = corral("sandbox", "exec", *HERE, "nobody", "true")
    assert ended.code == 125
    assert ended.stderr.startswith("corral: error: ")


def test_files_go_both_ways(corral: Corral, memory: MemoryBackend, box: str, tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(bytes(range(256)))
    assert corral("sandbox", "cp", *HERE, str(file), "box:").code == 0
    assert corral("sandbox", "cp", *HERE, "box:a.bin", str(tmp_path / "back.bin")).code == 0
    assert (tmp_path / "back.bin").read_bytes() == file.read_bytes()
    assert corral("sandbox", "cp", *HERE, "-", "box:from-stdin", stdin=b"typed").code == 0
    assert corral("sandbox", "cp", *HERE, "box:from-stdin", "-").stdout == "typed"


def test_no_folder_is_made_that_was_not_asked_for(corral: Corral, box: str, tmp_path: Path) -> None:
    assert corral("sandbox", "cp", *HERE, "-", "box:file", stdin=b"x").code == 0
    assert corral("sandbox", "cp", *HERE, "-", "box:tree/file", stdin=b"x").code == 0
    for source, target in (("file", "no/file"), ("file", "no/"), ("tree", "no/such/tree"), ("tree", "no/")):
        ended = corral("sandbox", "cp", *HERE, f"box:{source}", f"{tmp_path}/{target}")
        assert ended.code == 2
        assert "does not exist" in ended.stderr
    assert list(tmp_path.iterdir()) == []
    assert corral("sandbox", "cp", *HERE, "box:tree", str(tmp_path / "copy")).code == 0
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["file"]


def test_folders_go_both_ways_as_cp_does_it(corral: Corral, memory: MemoryBackend, box: str, tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    (folder / "empty").mkdir(parents=True)
    (folder / "file").write_text("x")
    assert corral("sandbox", "cp", *HERE, str(folder), "box:").code == 0
    assert corral("sandbox", "exec", *HERE, "box", "cat tree/file").stdout == "x"
    assert corral("sandbox", "cp", *HERE, f"{folder}/.", "box:/workspace/flat").code == 0
    assert corral("sandbox", "exec", *HERE, "box", "cat /workspace/flat/file").stdout == "x"
    out = tmp_path / "out"
    out.mkdir()
    assert corral("sandbox", "cp", *HERE, "box:tree", str(out)).code == 0
    assert (out / "tree" / "empty").is_dir()
    assert (out / "tree" / "file").read_text() == "x"


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("box:", CopyEnd("box", ".")),
        ("box:/a:b", CopyEnd("box", "/a:b")),
        ("./a:b", CopyEnd(None, "./a:b")),
        ("/tmp/x", CopyEnd(None, "/tmp/x")),
        ("-", CopyEnd(None, "-")),
        ("plain", CopyEnd(None, "plain")),
    ],
)
def test_ends_of_a_copy(text: str, end: CopyEnd) -> None:
    assert CopyEnd.parse(text) == end


@pytest.mark.parametrize(("source", "target"), [("a", "b"), ("x:a", "y:b")])
def test_one_end_must_be_inside(source: str, target: str) -> None:
    with pytest.raises(SpecError, match="inside a sandbox"):
        check_ends(CopyEnd.parse(source), CopyEnd.parse(target))


@pytest.mark.parametrize("command", [("logs", "box"), ("gc",), ("exec", "-d", "box", "true")])
def test_what_only_keepers_can_is_refused_with_a_hint(
    corral: Corral, memory: MemoryBackend, command: tuple[str, ...]
) -> None:
    ended = corral("sandbox", command[0], *HERE, *command[1:])
    assert ended.code in (1, 125)
    assert "the memory backend does not support" in ended.stderr
    assert "hint: use --backend embedded" in ended.stderr


def test_a_server_without_the_sdk_says_what_to_install(corral: Corral, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "daytona", None)
    for words in (("list",), ("rm", "--all")):
        ended = corral("sandbox", *words, "--url", "http://127.0.0.1:1/api", "--key", "k")
        assert ended.code == 1
        assert "pip install 'corral[daytona]'" in ended.stderr
        assert "bug" not in ended.stderr


def test_times_in_json_are_of_one_kind(corral: Corral, memory: MemoryBackend) -> None:
    assert corral("sandbox", "create", *HERE, "--lifetime", "1h").code == 0
    (info,) = json.loads(corral("sandbox", "list", *HERE, "--json").stdout)
    made, ends = (datetime.fromisoformat(info[name]) for name in ("created", "deadline"))
    assert timedelta(0) < ends - made <= timedelta(hours=1, seconds=1)
    assert info["owner"] is None


def test_network_of_a_sandbox_is_shown_and_changed(corral: Corral, memory: MemoryBackend, box: str) -> None:
    def network(*arguments: str) -> str:
        ended = corral("sandbox", "network", *HERE, "box", *arguments)
        assert ended.code == 0, ended.stderr
        return str(ended.stdout)

    assert network() == "none\n"
    assert network("packages", "a.org") == "packages,a.org\n"
    assert json.loads(network("--json")) == {"network": "packages,a.org", "mode": "packages", "hosts": ["a.org"]}
    assert "packages,a.org" in corral("sandbox", "list", *HERE).stdout
    assert network("none") == "none\n"
    wrong = corral("sandbox", "network", *HERE, "box", "none,a.org")
    assert wrong.code == 2
    assert network() == "none\n"
    assert corral("sandbox", "network", *HERE, "box", "none", "--denied").code == 2


def test_what_was_refused_is_told_by_exec_and_kept(corral: Corral, memory: MemoryBackend, box: str) -> None:
    memory.reply("fetch", denied=[Denial("example.org", None, "no network", 2)])
    assert corral("sandbox", "network", *HERE, "box", "--denied").stdout == "nothing was refused\n"
    ended = corral("sandbox", "exec", *HERE, "box", "fetch")
    assert ended.stderr == (
        "corral: network: blocked example.org (2 times): this sandbox has no network; "
        "ask for it with corral sandbox network box example.org; "
        "for pip, npm and the like: corral sandbox network box packages\n"
    )
    shown = corral("sandbox", "network", *HERE, "box", "--denied").stdout
    assert shown.split() == ["HOST", "PORT", "WHY", "TIMES", "example.org", "-", "no", "network", "2"]
    told = json.loads(corral("sandbox", "network", *HERE, "box", "--denied", "--json").stdout)
    assert told == [{"host": "example.org", "port": None, "rule": "no network", "count": 2}]
