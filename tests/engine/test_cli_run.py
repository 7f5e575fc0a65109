"""The command line on the real engine: `run` and `sandbox`, as root and as an ordinary user."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from support.project import ROOT
from support.tiers import further
from support.user import OrdinaryUser

pytestmark = pytest.mark.needs_userns

Ended = subprocess.CompletedProcess[str]
Corral = Callable[..., Ended]
PROGRAM = ("-m", "corral.cli")


@pytest.fixture(
    params=[pytest.param("root", marks=pytest.mark.needs_root), pytest.param("user", marks=pytest.mark.needs_user)]
)
def corral(request: pytest.FixtureRequest) -> Iterator[Corral]:
    """Run `corral` as root, and as an ordinary user; detached sandboxes are removed at the end."""
    if request.param == "root":

        def call(*arguments: str, stdin: str = "", timeout: float = 60) -> Ended:
            argv = [sys.executable, *PROGRAM, *arguments]
            return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout)
    else:
        user: OrdinaryUser = request.getfixturevalue("ordinary_user")

        def call(*arguments: str, stdin: str = "", timeout: float = 60) -> Ended:
            return user.run_argv([str(user.python), *PROGRAM, *arguments], stdin=stdin, timeout=timeout)

    yield call
    call("sandbox", "rm", "--all")


@pytest.fixture
def box(corral: Corral) -> str:
    ended = corral("sandbox", "create", "--lifetime", "5m", "--label", "made-by=test")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_streams_arguments_input_and_exit_code(corral: Corral) -> None:
    code = "import sys; print(sys.argv[1:], sys.stdin.read()); print('err', file=sys.stderr); sys.exit(7)"
    ended = corral("run", "-c", code, "--", "a", "--b", stdin="input")
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "['a', '--b'] input\n", "err\n")


def test_signals_and_timeouts_have_their_codes(corral: Corral) -> None:
    assert corral("run", "-l", "sh", "-c", "kill -9 $$").returncode == 137
    ended = corral("run", "--timeout", "0.5", "-l", "sh", "-c", "echo early; trap '' TERM; sleep 100")
    assert (ended.returncode, ended.stdout) == (124, "early\n")
    assert ended.stderr == "corral: timed out after 500 ms; it was killed with all its processes\n"


def test_a_program_that_needs_too_much_memory_is_explained(corral: Corral) -> None:
    code = "x = [bytearray(8 << 20) for _ in range(100)]"
    ended = corral("run", "--memory", "128MiB", "-c", code)
    assert ended.returncode != 0
    assert "out of memory: the sandbox has 128 MiB" in ended.stderr or "MemoryError" in ended.stderr


def test_json(corral: Corral) -> None:
    said = json.loads(corral("run", "--json", "-c", "print(6 * 7)").stdout)
    assert (said["stdout"], said["exit_code"], said["reason"]) == ("42\n", 0, "exited")
    assert said["usage"]["wall_seconds"] > 0
    assert said["usage"]["cpu_seconds"] > 0


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder that the user who runs `corral` may write to."""
    if request.node.callspec.params["corral"] == "root":
        return tmp_path
    user: OrdinaryUser = request.getfixturevalue("ordinary_user")
    return user.home


def test_a_folder_goes_in_and_comes_out(corral: Corral, folder: Path) -> None:
    source, out = folder / "in", folder / "out"
    source.mkdir()
    (source / "data.txt").write_text("3\n4\n")
    code = "open('sum.txt', 'w').write(str(sum(map(int, open('data.txt')))))"
    ended = corral("run", "--copy-in", str(source), "--copy-out", str(out), "-c", code)
    assert ended.returncode == 0, ended.stderr
    assert (out / "sum.txt").read_text() == "7"
    assert (out / "data.txt").read_text() == "3\n4\n"


def test_life_of_a_detached_sandbox(corral: Corral, box: str) -> None:
    (entry,) = json.loads(corral("sandbox", "list", "--json").stdout)
    assert entry["sandbox_id"] == box
    assert entry["labels"] == {"made-by": "test"}
    created, ends = (datetime.fromisoformat(entry[name]) for name in ("created", "deadline"))
    assert 200 < (ends - created).total_seconds() < 600
    assert corral("sandbox", "exec", box, "echo kept > file; exit 3").returncode == 3
    assert corral("sandbox", "exec", box[:8], "--", "cat", "file").stdout == "kept\n"
    ended = corral("sandbox", "exec", box, "-w", "/tmp", "-e", "A=b", "echo $PWD $A")
    assert ended.stdout == "/tmp b\n"
    assert corral("sandbox", "exec", "--timeout", "0.3", box, "sleep 9").returncode == 124
    assert corral("sandbox", "rm", box).stdout == f"{box}\n"
    assert corral("sandbox", "exec", box, "true").returncode == 125
    assert corral("sandbox", "list").stdout == "no sandboxes\n"


def test_programs_that_run_on_have_logs(corral: Corral, box: str) -> None:
    assert corral("sandbox", "exec", "-d", box, "for i in 1 2 3; do echo $i; sleep 0.2; done; exit 4").stdout == "1\n"
    assert corral("sandbox", "exec", "-d", box, "--", "sleep", "100").stdout == "2\n"
    assert corral("sandbox", "logs", "-f", box, "1").stdout == "1\n2\n3\n"
    programs = json.loads(corral("sandbox", "logs", "--json", box).stdout)
    assert [(program["state"], program["exit_code"]) for program in programs] == [("ended", 4), ("running", None)]
    assert json.loads(corral("sandbox", "logs", "--json", box, "1").stdout)["output"] == "1\n2\n3\n"
    listed = corral("sandbox", "logs", "--list", box).stdout
    assert "sleep 100" in listed
    ended = corral("sandbox", "logs", box, "9")
    assert ended.returncode == 1
    assert " --list` lists the programs" in ended.stderr


def test_keep_on_failure(corral: Corral) -> None:
    ended = corral("run", "--keep-on-failure", "-l", "sh", "-c", "echo evidence > file; exit 1")
    assert ended.returncode == 1
    kept = ended.stderr.split()[-1]
    assert corral("sandbox", "exec", kept, "cat file").stdout == "evidence\n"


def test_gc_clears_what_a_killed_process_left(corral: Corral, box: str) -> None:
    assert corral("sandbox", "gc").stdout == "nothing to remove\n"
    assert corral("sandbox", "exec", box, "true").returncode == 0, "a living sandbox is not touched"
    os.kill(find_keeper(box), signal.SIGKILL)
    said = json.loads(corral("sandbox", "gc", "--json").stdout)
    assert said["removed"] == [box]
    assert said["freed_bytes"] > 0
    assert corral("sandbox", "exec", box, "true").returncode == 125


def find_keeper(sandbox_id: str) -> int:
    """The process that holds this sandbox's lock."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # of a process that has ended, or closed it, meanwhile
            name = (link.parent.parent / "comm").read_text()
            if name == "corral-keeper\n" and str(link.readlink()).endswith(f"/sandboxes/{sandbox_id}/lock"):
                return int(link.parent.parent.name)
    raise AssertionError("no process holds it")


def test_doctor_says_that_it_works(corral: Corral) -> None:
    ended = corral("doctor", timeout=120)
    assert ended.returncode == 0, ended.stdout
    assert "Sandboxes work here." in ended.stdout
    said = json.loads(corral("doctor", "--json", timeout=120).stdout)
    assert said["works"]
    areas = {"machine", "sandboxes", "languages", "limits", "data", "--network packages"}
    assert {finding["area"] for finding in said["findings"]} == areas
    (network,) = [finding for finding in said["findings"] if finding["subject"] == "network"]
    assert network["mark"] == "good", network
    assert max(len(line) for line in ended.stdout.splitlines()) <= 80


def test_doctor_prints_the_plan(corral: Corral) -> None:
    lines = corral("doctor", "--plan").stdout.splitlines()
    assert "Pivot" in lines
    assert "Filter" in lines
    assert lines.index("Pivot") < lines.index("Filter")


def test_doctor_proves(corral: Corral) -> None:
    ended = corral("doctor", "--probe", "read-the-hosts-password-hashes", timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "All 1 probes were stopped." in ended.stdout


@pytest.mark.check
def test_bench_measures(corral: Corral) -> None:
    ended = corral("bench", "--runs", "1", "--rounds", "3", "--json", timeout=120)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    contest = {row["task"]: row for row in said["contest"]}
    assert contest["exec true"]["ratio_to_plain"]["plain"] == 1
    assert contest["Python snippet"]["median_seconds"]["corral"] > 0
    assert {figure["unit"] for figure in said["figures"]} == {"seconds", "bytes", "things", "per second"}


@pytest.mark.check
def test_demo_leaves_nothing_behind(corral: Corral, request: pytest.FixtureRequest) -> None:
    if "user" in request.node.callspec.params["corral"]:
        user: OrdinaryUser = request.getfixturevalue("ordinary_user")
        shutil.copytree(ROOT / "examples/demo", user.home / "demo", copy_function=shutil.copyfile)
        ended = user.run_argv([str(user.python), "demo"], timeout=100)
    else:
        argv = [sys.executable, str(ROOT / "examples/demo")]
        ended = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "\x1b" not in ended.stdout
    assert max(len(line) for line in ended.stdout.splitlines()) <= 80
    for stopped in ("/etc/shadow'", "Network is unreachable", "by the timeout, exit code 124"):
        assert stopped in ended.stdout


@pytest.mark.needs_root
def test_ctrl_c_ends_the_sandbox_and_is_130() -> None:
    argv = [sys.executable, *PROGRAM, "run", "-n", "-c", "print('up', flush=True); import time; time.sleep(1000)"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert b"Traceback" not in errors


@pytest.mark.needs_user
def test_limit_of_processors_is_kept_or_refused_with_the_remedy(ordinary_user: OrdinaryUser) -> None:
    """Also if it is the default number, because the user named it; a default that was not named is never refused."""

    def call(*arguments: str) -> Ended:
        return ordinary_user.run_argv([str(ordinary_user.python), *PROGRAM, *arguments])

    found = json.loads(call("doctor", "--json").stdout)["findings"]
    (cpu,) = [finding for finding in found if finding["subject"] == "cpu"]
    for number in ("0.5", "2"):
        ended = call("run", "--cpus", number, "-c", "print(42)")
        if cpu["mark"] == "good":
            assert ended.stdout == "42\n"
            continue
        assert (ended.returncode, ended.stdout) == (125, "")
        assert f"a limit of {number} processor(s) is not supported on this machine" in ended.stderr
        assert "Delegate=yes" in ended.stderr
        assert "--cpus" in cpu["text"]
        assert "Delegate=yes" in cpu["remedy"]
    assert call("run", "-c", "print(42)").stdout == "42\n"
    assert call("sandbox", "create", "--cpus", "1").returncode == (0 if cpu["mark"] == "good" else 1)
    call("sandbox", "rm", "--all")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_it_runs_where_standard_streams_are_closed(closed: str) -> None:
    argv = [sys.executable, *PROGRAM, "run", "-c", "import sys; print(len(sys.stdin.read())); sys.exit(7)"]
    ended = subprocess.run(["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *argv], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (7, "")
    assert ended.stdout == ("" if ">&-" in closed else "0\n")


MAIN = """
import sys
from pathlib import Path
import helper
print(__file__, sys.argv, sys.path[0], helper.read(Path(__file__).parent / "data.txt"))
raise SystemExit(1 / 0)
"""


def test_a_file_knows_its_place_in_the_folder_that_was_copied_in(corral: Corral, folder: Path) -> None:
    source = folder / "project" / "src"
    source.mkdir(parents=True)
    (source / "main.py").write_text(MAIN)
    (source / "helper.py").write_text("def read(path):\n    return path.read_text()\n")
    (source / "data.txt").write_text("data")
    ended = corral("run", "--copy-in", str(source.parent), str(source / "main.py"), "--", "one")
    place = "/workspace/src/main.py"
    assert ended.stdout == f"{place} ['{place}', 'one'] /workspace/src data\n"
    assert f'File "{place}", line 6, in <module>' in ended.stderr
    assert "ZeroDivisionError" in ended.stderr
    lone = folder / "lone.py"
    lone.write_text("print(__file__)")
    assert corral("run", "-w", "/workspace", str(lone)).stdout == "/workspace/lone.py\n"


@pytest.mark.needs_node
@pytest.mark.parametrize(
    ("name", "source", "shown"),
    [
        further("lone.mjs", "console.log(await import.meta.url)", r"file:///home/daytona/lone\.mjs"),
        # Node.js before 20.19 takes only .mjs for a module.
        ("module.js", "import fs from 'fs'; console.log(import.meta.url)", r"file:///home/daytona/module\.m?js"),
        further("plain.js", "console.log(__filename)", r"/home/daytona/plain\.js"),
        further(
            "waits.js", "const w = async () => { await null; console.log(__filename) }; w()", r"/home/daytona/waits\.js"
        ),
        ("plain.sh", "echo $0", r"/home/daytona/plain\.sh"),
        # No version of Node.js runs it as it is: it is run as a snippet.
        further("both.js", "await null; console.log(require('path').basename(__dirname))", r"daytona|\.corral-\w+"),
    ],
)
def test_a_lone_file_has_its_own_name(corral: Corral, folder: Path, name: str, source: str, shown: str) -> None:
    lone = folder / name
    lone.write_text(source)
    ended = corral("run", str(lone))
    assert re.fullmatch(shown, ended.stdout.strip()), ended


def test_a_mounted_folder_is_changed_only_by_apply(corral: Corral, request: pytest.FixtureRequest) -> None:
    as_root = "[root]" in request.node.name
    owner = 12345 if as_root else request.getfixturevalue("ordinary_user").uid
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name, "project")
        folder.mkdir()
        (folder / "file").write_text("one\n")
        for path in (Path(name), folder, folder / "file"):
            os.chown(path, owner, owner)
        Path(name).chmod(0o755)
        listed = ("--host-folders", str(folder))
        mounted = ("--mount", f"{folder}:/project:overlay", "-w", "/project", "-l", "bash")
        refused = corral("run", *mounted, "-c", "cat file")
        assert refused.returncode == 125
        assert "--host-folders before the command" in refused.stderr
        assert corral(*listed, "run", *mounted, "-c", "echo two > file").returncode == 0
        assert (folder / "file").read_text() == "one\n"
        ended = corral(*listed, "run", "--apply", *mounted, "-c", "echo two > file; exit 3")
        assert (ended.returncode, ended.stderr) == (3, "corral: 1 change was applied\n")
        assert (folder / "file").read_text() == "two\n"
        assert (folder / "file").stat().st_uid == owner

        made = corral(*listed, "sandbox", "create", "--name", "worker", "--mount", f"{folder}:/project:copy")
        assert made.returncode == 0, made.stderr
        corral("sandbox", "exec", "worker", "cd /project && echo box > file && touch new")
        assert corral("sandbox", "diff", "worker").stdout == "M  file\nA  new\n"
        (folder / "file").write_text("host\n")
        assert corral("sandbox", "diff", "worker", "/project").stdout == "M! file\nA  new\n"
        conflict = corral("sandbox", "apply", "worker")
        assert conflict.returncode == 1
        assert "'file'" in conflict.stderr
        assert "use --overwrite" in conflict.stderr
        assert corral("sandbox", "apply", "worker", "--overwrite").stdout == "M! file\nA  new\n"
        assert corral("sandbox", "diff", "worker", "--json").stdout == "[]\n"
        assert (folder / "file").read_text() == "box\n"
