"""`corral run`, on the memory backend: streams, exit codes, errors."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corral.backends.memory import MemoryBackend
from corral.cli.options import read_mounts
from corral.errors import SpecError
from corral.mount import Mount
from corral.results import Denial

Corral = Callable[..., Any]
RUN = ("run", "--backend", "memory")


def test_streams_and_exit_code_are_the_programs(corral: Corral, memory: MemoryBackend) -> None:
    memory.reply_code("print(6 * 7)", stdout="42\n", stderr="warning\n", exit_code=3)
    ended = corral(*RUN, "-c", "print(6 * 7)")
    assert (ended.code, ended.stdout, ended.stderr) == (3, "42\n", "warning\n")
    assert memory.count_living() == 0


def test_bytes_pass_unchanged_where_there_is_no_terminal(
    memory: MemoryBackend, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    from corral.cli import main

    data = b"\x00\xff\x1b[31m\r\n"
    memory.reply_code("x", stdout=data)
    assert main([*RUN, "--no-input", "-c", "x"]) == 0
    assert capfdbinary.readouterr().out == data


def test_a_file_is_the_source_and_its_name_the_language(corral: Corral, memory: MemoryBackend, tmp_path: Path) -> None:
    file = tmp_path / "script.ts"
    file.write_text("let x: number = 1")
    memory.reply_code("let x: number = 1", language="typescript", stdout="ts\n")
    assert corral(*RUN, str(file)).stdout == "ts\n"


def test_arguments_follow_the_file_and_the_snippet(corral: Corral, memory: MemoryBackend, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("pass")
    memory.reply_code("pass")
    assert corral(*RUN, str(file), "--", "--flag", "two").code == 0
    assert memory.calls[-1].argv[-2:] == ("--flag", "two")
    assert corral(*RUN, "-c", "pass", "--", "one").code == 0
    assert memory.calls[-1].argv[-1] == "one"


def test_source_from_standard_input(corral: Corral, memory: MemoryBackend) -> None:
    memory.reply_code("piped", stdout="yes\n")
    assert corral(*RUN, "-", stdin=b"piped").stdout == "yes\n"
    assert corral(*RUN, stdin=b"piped").stdout == "yes\n"


def test_piped_input_reaches_the_program(corral: Corral, memory: MemoryBackend) -> None:
    assert corral(*RUN, "-l", "sh", "-c", "cat", stdin=b"through\n").stdout == "through\n"
    assert corral(*RUN, "-l", "sh", "-c", "cat", "--no-input", stdin=b"through\n").stdout == ""


def test_environment_from_flags_and_files(
    corral: Corral, memory: MemoryBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "vars"
    file.write_text("# comment\nexport A=1\nB='two words'\n\nC=from file\n")
    monkeypatch.setenv("FROM_HERE", "host value")
    memory.reply_code("pass")
    assert corral(*RUN, "-c", "pass", "--env-file", str(file), "-e", "C=flag", "-e", "FROM_HERE").code == 0
    env = memory.calls[-1].env
    assert {name: env[name] for name in ("A", "B", "C", "FROM_HERE")} == {
        "A": "1", "B": "two words", "C": "flag", "FROM_HERE": "host value",
    }  # fmt: skip


def test_timeout_is_124_and_one_line(corral: Corral, memory: MemoryBackend) -> None:
    ended = corral(*RUN, "-l", "sh", "-c", "echo partial; sleep 9", "--timeout", "0.2")
    assert (ended.code, ended.stdout) == (124, "partial\n")
    assert ended.stderr.splitlines() == ["corral: timed out after 200 ms; it was killed with all its processes"]


def test_json_says_everything(corral: Corral, memory: MemoryBackend) -> None:
    memory.reply_code("x", stdout=b"out\xff", stderr="err", exit_code=4)
    ended = corral(*RUN, "-c", "x", "--json")
    assert ended.code == 4
    assert ended.stderr == ""
    said = json.loads(ended.stdout)
    assert said["stdout"] == "out\ufffd"
    assert (said["stderr"], said["exit_code"], said["reason"]) == ("err", 4, "exited")
    assert (said["truncated"], said["stdout_bytes"], said["stderr_bytes"]) == (False, 4, 3)
    assert said["usage"].keys() == {"wall_seconds", "cpu_seconds", "peak_memory_bytes", "notes"}
    assert said["language"] == "python"


def test_json_says_what_was_cut(corral: Corral, memory: MemoryBackend) -> None:
    memory.reply_code("x", stdout="y" * 5000)
    said = json.loads(corral(*RUN, "-c", "x", "--json", "--output-limit", "1000").stdout)
    assert said["truncated"]
    assert said["stdout_bytes"] == 5000
    assert len(said["stdout"]) < 2000


def test_folders_go_in_and_come_out(corral: Corral, memory: MemoryBackend, tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "a.txt").write_text("content")
    target = tmp_path / "out"
    ended = corral(
        *RUN, "-l", "sh", "--copy-in", str(source), "--copy-out", str(target), "-c", "cat deep/a.txt; pwd; exit 1"
    )  # fmt: skip
    assert (ended.code, ended.stdout) == (1, "content/workspace\n")
    assert (target / "deep" / "a.txt").read_text() == "content"


def test_keep_on_failure_leaves_a_sandbox_that_can_be_found(corral: Corral, memory: MemoryBackend) -> None:
    assert corral(*RUN, "-l", "sh", "-c", "exit 0", "--keep-on-failure").code == 0
    assert memory.count_living() == 0
    ended = corral(*RUN, "-l", "sh", "-c", "exit 9", "--keep-on-failure")
    assert ended.code == 9
    found = re.search(r"the sandbox was kept; to inspect it: corral shell (\S+)", ended.stderr)
    assert found is not None
    assert corral("sandbox", "rm", "--backend", "memory", found[1]).code == 0
    assert memory.count_living() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--unknown",), 2, "--unknown"),
        (("-c", "x", "--timeout", "0"), 2, "'0' is not a time"),
        (("-c", "x", "--timeout", "nan"), 2, "'nan' is not a time"),
        (("-c", "x", "--timeout=-1"), 2, "'-1' is not a time"),
        (("-c", "x", "--memory", "lots"), 2, "'lots' is not a size"),
        (("-c", "x", "--cpus", "0"), 2, "--cpus 0.0"),
        (("-c", "x", "-e", "=x"), 2, "''"),
        (("-c", "x", "-e", "NOT_SET_ANYWHERE"), 2, "NOT_SET_ANYWHERE"),
        (("-c", "x", "-l", "cobol"), 2, "'cobol'"),
        (("-c", "x", "--network", "a,,b"), 2, "'a,,b'"),
        (("-c", "x", "--workdir", "relative"), 2, "'relative'"),
        (("-c", "x", "--backend", "nobody"), 2, "'nobody'"),
        (("no-such-file.py",), 2, "'no-such-file.py'"),
        ((".",), 2, "'.' is a folder"),
        ((), 2, "nothing to run"),
    ],
)
def test_bad_input_is_one_line_and_a_hint(
    corral: Corral, memory: MemoryBackend, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended = corral(*RUN, *arguments)
    assert ended.code == code
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert lines[0].startswith("corral: error: ")
    assert said in lines[0]
    assert len(lines) <= 2
    assert all(line.startswith("hint: ") for line in lines[1:])
    assert memory.count_living() == 0


@pytest.mark.parametrize("package", ["evil @ file:///x", "--index-url=https://example.org", "./x"])
def test_package_by_address_is_a_mistake_of_the_caller(corral: Corral, package: str) -> None:
    ended = corral("run", f"--package={package}", "-c", "1")
    assert ended.code == 2
    assert "is not a package name" in ended.stderr


def test_a_file_that_is_no_python_is_not_run_as_python(corral: Corral, memory: MemoryBackend, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("print(1)")
    memory.reply_code("print(1)", stdout="1\n")
    ended = corral(*RUN, str(file))
    assert (ended.code, ended.stdout) == (2, "")
    assert "--language" in ended.stderr
    assert memory.calls == []
    assert corral(*RUN, "-l", "python", str(file)).stdout == "1\n"


def test_a_file_is_run_from_its_place_in_what_was_copied_in(
    corral: Corral, memory: MemoryBackend, tmp_path: Path
) -> None:
    project, other = tmp_path / "project", tmp_path / "other"
    (project / "src").mkdir(parents=True)
    other.mkdir()
    script = project / "src" / "main.py"
    script.write_text("pass")
    memory.reply_code("pass")
    assert corral(*RUN, "--copy-in", str(project), str(script)).code == 0
    assert memory.calls[-1].argv[1] == "/workspace/src/main.py"
    assert corral(*RUN, "--copy-in", str(other), "--copy-out", str(tmp_path / "out"), str(script)).code == 0
    assert memory.calls[-1].argv[1] == "/workspace/main.py"
    assert list((tmp_path / "out").iterdir()) == [], "what was not asked for does not come out"
    (other / "main.py").write_text("another")
    assert corral(*RUN, "--copy-in", str(other), str(script)).code == 0, "and overwrites nothing"
    assert memory.calls[-1].text == "pass"


@pytest.mark.parametrize(("content", "said"), [(None, "does not exist"), (b"A=\xe9\n", "is not UTF-8")])
def test_file_of_variables_that_cannot_be_read_is_a_usage_error(
    corral: Corral, tmp_path: Path, content: bytes | None, said: str
) -> None:
    file = tmp_path / "variables"
    if content is not None:
        file.write_bytes(content)
    ended = corral(*RUN, "-c", "pass", "--env-file", str(file))
    assert ended.code == 2
    assert said in ended.stderr


def test_an_empty_name_is_no_folder(corral: Corral) -> None:
    ended = corral(*RUN, "")
    assert (ended.code, "file not found: ''" in ended.stderr) == (2, True)


REFUSED = (Denial("example.org", 443, "policy"),)


def test_what_the_network_refused_is_told_after_the_output(corral: Corral, memory: MemoryBackend) -> None:
    memory.reply_code("x", stdout="out\n", denied=REFUSED)
    ended = corral(*RUN, "--network", "packages", "--network", "a.org,b.org", "-c", "x")
    assert (ended.code, ended.stdout) == (0, "out\n")
    assert ended.stderr == (
        "corral: network: blocked example.org:443; allowed are package registries, a.org, b.org; "
        "ask for it with --network packages,a.org,b.org,example.org:443\n"
    )
    told = json.loads(corral(*RUN, "--json", "-c", "x").stdout)
    assert told["denied"] == [{"host": "example.org", "port": 443, "rule": "policy", "count": 1}]
    memory.reply_code("y")
    assert json.loads(corral(*RUN, "--json", "-c", "y").stdout)["denied"] == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--network", "none,a.org"), "--network 'none,a.org' asks for more than one thing"),
        (("--network", "none", "--network", "open"), "--network 'none,open' asks for more than one thing"),
        (("--network", "https://a.org/x"), "--network: 'https://a.org/x' is an address of a page"),
        (("--network", "a.org,,b.org"), "--network 'a.org,,b.org' is not a valid policy"),
    ],
)
def test_a_policy_that_is_none_is_explained(
    corral: Corral, memory: MemoryBackend, flags: tuple[str, ...], said: str
) -> None:
    ended = corral(*RUN, *flags, "-l", "sh", "-c", "true")
    assert ended.code == 2
    assert ended.stderr.startswith(f"corral: error: {said}")
    assert "packages" in ended.stderr.partition("hint:")[2]


def test_apply_needs_a_folder_that_may_be_changed(corral: Corral, memory: MemoryBackend) -> None:
    ended = corral("run", "--backend", "memory", "--apply", "-c", "print(1)")
    assert ended.code == 2
    assert "--mount DIR:PATH:overlay" in ended.stderr


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("data:/data", Mount("/data", volume="data")),
        ("data:/data:ro", Mount("/data", volume="data", mode="ro")),
        ("data/users/ann:/mine", Mount("/mine", volume="data", subpath="users/ann")),
        ("data/a:/mine:ro,exclusive", Mount("/mine", volume="data", subpath="a", mode="ro", exclusive=True)),
        ("data:/data:exclusive", Mount("/data", volume="data", exclusive=True)),
    ],
)
def test_volumes_are_given_by_name_folder_and_mode(text: str, mount: Mount) -> None:
    assert read_mounts((text,), ()) == (mount,)


@pytest.mark.parametrize(
    "text", ["data", "data:data", ":/data", "data:/data:x", "data:/data:ro,rw", "data/..:/data", "data:/data:copy"]
)
def test_volumes_that_can_not_be_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        read_mounts((text,), ())
