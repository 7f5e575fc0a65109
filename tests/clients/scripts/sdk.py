"""What every version of the Python SDK since 0.27 can do; what came later is tried where it is there."""

import asyncio
import inspect
import time
import urllib.error
import urllib.request
from importlib.metadata import version

from daytona import (
    CodeRunParams,
    CreateSnapshotParams,
    Daytona,
    DaytonaError,
    FileUpload,
    SessionExecuteRequest,
)

try:
    from daytona import ListSandboxesQuery  # since 0.180 or so
except ImportError:
    ListSandboxesQuery = None

VERSION = tuple(int(part) for part in version("daytona").split("."))


def fails(call) -> DaytonaError:
    try:
        got = call()
    except DaytonaError as error:
        return error
    raise AssertionError(f"it gave {got!r} and raised nothing")


def run_programs(process) -> None:
    answer = process.exec("echo $A; exit 3", env={"A": "hi"})
    assert (answer.exit_code, answer.result.strip()) == (3, "hi"), answer
    assert "1 s" in str(fails(lambda: process.exec("sleep 600", timeout=1)))
    answer = process.code_run("import sys; print(6 * 7, sys.argv[1:])", CodeRunParams(argv=["a"], env={"B": "x"}))
    assert (answer.exit_code, answer.result.strip()) == (0, "42 ['a']"), answer  # some versions strip it
    answer = process.code_run("1/0")
    assert answer.exit_code == 1, answer
    assert "ZeroDivisionError" in answer.result, answer


def use_files(fs) -> None:
    fs.upload_file(b"hello", "d/x.txt")
    fs.upload_files(
        [FileUpload(source=b"1", destination="d/1"), FileUpload(source=bytes(range(256)), destination="d/ä 2")]
    )
    assert fs.download_file("d/x.txt") == b"hello"
    if not (0, 140) < VERSION < (0, 200):  # these take the name of what they get for Latin-1 and don't find it again
        assert fs.download_file("d/ä 2") == bytes(range(256))
    assert "not found" in str(fails(lambda: fs.download_file("d/none")))
    assert sorted(each.name for each in fs.list_files("d")) == ["1", "x.txt", "ä 2"]
    assert fs.get_file_info("d/x.txt").size == 5
    (match,) = fs.find_files("d", "hell")
    assert (match.line, match.content) == (1, "hello"), match
    (found,) = fs.search_files("d", "*.txt").files
    assert found.endswith("d/x.txt"), found
    (replaced,) = fs.replace_in_files(["d/x.txt"], "hello", "bye")
    assert replaced.success, replaced
    fs.move_files("d/x.txt", "d/y")
    assert fs.download_file("d/y") == b"bye"
    fs.create_folder("e", "755")
    fs.set_file_permissions("d/y", mode="600")
    assert fs.get_file_info("d/y").permissions == "0600"
    fs.delete_file("d/y")
    assert sorted(each.name for each in fs.list_files("d")) == ["1", "ä 2"]


def use_sessions(process) -> None:
    process.create_session("a")
    answer = process.execute_session_command("a", SessionExecuteRequest(command="cd /tmp; export X=5; echo out"))
    assert answer.exit_code == 0, answer
    assert "out\n" in answer.output, answer
    answer = process.execute_session_command("a", SessionExecuteRequest(command="echo $X in $PWD; false"))
    assert answer.exit_code == 1, answer
    assert "5 in /tmp\n" in answer.output, answer
    script = "for i in 1 2 3; do echo $i; echo e$i >&2; sleep 0.1; done"
    command = process.execute_session_command("a", SessionExecuteRequest(command=script, run_async=True))
    out, err = [], []
    follow = process.get_session_command_logs_async
    two = len(inspect.signature(follow).parameters) >= 4
    asyncio.run(follow("a", command.cmd_id, *((out.append, err.append) if two else (out.append,))))
    assert "".join(out).replace("\x01", "").split()[:3] == ["1", "2", "3"], out
    assert not two or "".join(err) == "e1\ne2\ne3\n", err
    assert process.get_session_command("a", command.cmd_id).exit_code == 0
    assert [each.session_id for each in process.list_sessions()] == ["a"]
    assert len(process.get_session("a").commands) == 3
    process.delete_session("a")
    assert process.list_sessions() == []


def use_terminal(process) -> None:
    handle = process.create_pty_session("p")
    handle.wait_for_connection()
    handle.send_input("stty size; exit 3\n")
    shown = []
    assert handle.wait(on_data=shown.append).exit_code == 3
    assert b"24 80" in b"".join(shown), shown


def fetch(url: str, token: str = "") -> tuple[int, bytes]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers={"X-Daytona-Preview-Token": token} if token else {})
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def use_previews(sandbox) -> None:
    sandbox.fs.upload_file(b"made inside", "page.txt")
    sandbox.process.create_session("web")
    command = "python3 -m http.server --bind 127.0.0.1 8000"
    sandbox.process.execute_session_command("web", SessionExecuteRequest(command=command, run_async=True))
    link = sandbox.get_preview_link(8000)
    deadline = time.monotonic() + 60
    while (got := fetch(f"{link.url}/page.txt", link.token))[0] == 502:
        assert time.monotonic() < deadline, got
        time.sleep(0.1)
    assert got == (200, b"made inside"), got
    assert fetch(f"{link.url}/page.txt")[0] == 401
    if hasattr(sandbox, "create_signed_preview_url"):
        signed = sandbox.create_signed_preview_url(8000, expires_in_seconds=60)
        assert fetch(f"{signed.url}/page.txt") == (200, b"made inside")
        sandbox.expire_signed_preview_url(8000, signed.token)
        assert fetch(f"{signed.url}/page.txt")[0] == 401
    sandbox.process.delete_session("web")


def use_git(sandbox) -> None:
    made = sandbox.process.exec("git init -q -b main r && cd r && touch new")
    assert made.exit_code == 0, made
    assert [each.name for each in sandbox.git.status("r").file_status] == ["new"]
    sandbox.git.add("r", ["new"])
    sandbox.git.commit("r", "first", "A", "a@example.com")
    assert sandbox.git.branches("r").branches == ["main"]
    assert sandbox.git.status("r").file_status == []
    fails(lambda: sandbox.git.status("nope"))


def items_of(answer) -> list:
    """A list once, then a page, then something to go through."""
    return list(getattr(answer, "items", answer))


def use_control_plane(daytona, sandbox) -> None:
    assert sandbox.set_labels({"tried": "lists"}) == {"tried": "lists"}
    assert sandbox.id in [each.id for each in items_of(daytona.list())]
    labels = {"tried": "lists"}
    query = ListSandboxesQuery(labels=labels) if ListSandboxesQuery is not None else labels
    assert [each.id for each in items_of(daytona.list(query))] == [sandbox.id]
    assert daytona.get(sandbox.id).id == sandbox.id
    sandbox.set_autostop_interval(20)
    sandbox.set_auto_archive_interval(30)
    sandbox.refresh_data()
    assert (sandbox.auto_stop_interval, sandbox.auto_archive_interval) == (20, 30), sandbox
    assert "default" in [each.name for each in items_of(daytona.snapshot.list())]
    name = f"tried-{sandbox.id}"
    made = daytona.snapshot.create(CreateSnapshotParams(name=name, image="default"))
    assert daytona.snapshot.get(name).id == made.id
    daytona.snapshot.delete(made)
    fails(lambda: daytona.snapshot.get(name))
    fails(lambda: daytona.get("nothing"))


daytona = Daytona()
sandbox = daytona.create()
try:
    run_programs(sandbox.process)
    use_files(sandbox.fs)
    use_sessions(sandbox.process)
    # 0.108 has them first; the interpreter is younger by a few.
    assert hasattr(sandbox.process, "create_pty_session") == (VERSION >= (0, 108))
    assert hasattr(sandbox, "code_interpreter") == (VERSION >= (0, 130))
    if VERSION >= (0, 108):
        use_terminal(sandbox.process)
    if VERSION >= (0, 130):
        assert sandbox.code_interpreter.run_code("print(6 * 7)").stdout == "42\n"
    use_previews(sandbox)
    use_git(sandbox)
    use_control_plane(daytona, sandbox)
    home = sandbox.get_user_home_dir() if hasattr(sandbox, "get_user_home_dir") else sandbox.get_user_root_dir()
    assert home == "/home/daytona", home
    sandbox.stop()
    sandbox.start()
    assert sandbox.fs.download_file("d/1") == b"1"
finally:
    daytona.delete(sandbox)
print("came to its end")
