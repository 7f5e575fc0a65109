"""What the official SDK does with each operation of the toolbox, and what must come of it. Fills `toolbox.TABLE`."""

import asyncio
import inspect
import os

import daytona_toolbox_api_client as sync_api
import daytona_toolbox_api_client_async as async_api
import pytest
from daytona import DaytonaNotFoundError, FileDownloadRequest, FileUpload, SessionExecuteRequest
from daytona.common.pty import PtySize

from support.toolbox import World, row

GUARD_SECONDS = 60


# ---------------------------------------------------------------------------------------------------------------- files


@row
def create_folder(world: World) -> None:
    path = world.name()
    world.box.fs.create_folder(path, "700")
    assert world.box.fs.get_file_info(path).permissions == "0700"


@row
def delete_file(world: World) -> None:
    path = world.file()
    world.box.fs.delete_file(path)
    with pytest.raises(DaytonaNotFoundError):
        world.box.fs.get_file_info(path)


@row
def download_files(world: World) -> None:
    path = world.file()
    good, bad = world.box.fs.download_files([FileDownloadRequest(source=path), FileDownloadRequest(source="none")])
    assert (good.result, bad.result, bad.error_details.code) == (b"one two\n", None, "FILE_NOT_FOUND")


@row
def find_in_files(world: World) -> None:
    path = world.file()
    (match,) = world.box.fs.find_files(path.partition("/")[0], "two")
    assert (match.file, match.line, match.content) == (path, 1, "one two")


@row
def get_file_info(world: World) -> None:
    info = world.box.fs.get_file_info(world.file())
    assert (info.name, info.is_dir, info.size, info.mode, info.owner) == ("file.txt", False, 8, "-rw-r--r--", "daytona")


@row
def list_files(world: World) -> None:
    (info,) = world.box.fs.list_files(world.file().partition("/")[0])
    assert info.name == "file.txt"


@row
def move_file(world: World) -> None:
    target = world.name()
    world.box.fs.move_files(world.file(), target)
    assert world.box.fs.download_file(target) == b"one two\n"


@row
def replace_in_files(world: World) -> None:
    path = world.file()
    (result,) = world.box.fs.replace_in_files([path], "two", "three")
    assert (result.file, result.success) == (path, True)
    assert world.box.fs.download_file(path) == b"one three\n"


@row
def search_files(world: World) -> None:
    path = world.file()
    assert world.box.fs.search_files(path.partition("/")[0], "*.txt").files == [path]


@row
def set_file_permissions(world: World) -> None:
    path = world.file()
    world.box.fs.set_file_permissions(path, mode="600")
    assert world.box.fs.get_file_info(path).permissions == "0600"


@row
def upload_files(world: World) -> None:
    folder = world.name()
    world.box.fs.upload_files(
        [FileUpload(source=b"1", destination=f"{folder}/ä b"), FileUpload(source=b"2", destination=f"{folder}/2")]
    )
    assert world.box.fs.download_file(f"{folder}/ä b") == b"1"


@row
def download_file(world: World) -> None:
    assert bytes(world.generated("FileSystemApi").download_file(world.file())) == b"one two\n"


@row
def upload_file(world: World) -> None:
    path = world.name()
    world.generated("FileSystemApi").upload_file(path, ("any", b"content"))
    assert world.box.fs.download_file(path) == b"content"


# ------------------------------------------------------------------------------------------------------------------ git


@row
def init_repository(world: World) -> None:
    path = world.name()
    world.box.git.init(path, initial_branch="trunk")
    assert world.box.git.status(path).current_branch == "trunk"


@row
def add_files(world: World) -> None:
    path = world.repository()
    world.box.fs.upload_file(b"2\n", f"{path}/b.txt")
    world.box.git.add(path, ["b.txt"])
    (file,) = world.box.git.status(path).file_status
    assert (file.name, file.staging) == ("b.txt", "Added")


@row
def commit_changes(world: World) -> None:
    path = world.repository()
    assert len(world.box.git.commit(path, "empty", "Ann", "ann@example.com", allow_empty=True).sha) == 40


@row
def get_status(world: World) -> None:
    status = world.box.git.status(world.repository())
    assert (status.current_branch, status.file_status) == ("main", [])


@row
def create_branch(world: World) -> None:
    path = world.repository()
    world.box.git.create_branch(path, "side")
    assert world.box.git.branches(path).branches == ["main", "side"]


@row
def list_branches(world: World) -> None:
    assert world.box.git.branches(world.repository()).branches == ["main"]


@row
def checkout_branch(world: World) -> None:
    path = world.repository()
    world.box.git.create_branch(path, "side")
    world.box.git.checkout_branch(path, "side")
    assert world.box.git.status(path).current_branch == "side"


@row
def delete_branch(world: World) -> None:
    path = world.repository()
    world.box.git.create_branch(path, "side")
    world.box.git.delete_branch(path, "side")
    assert world.box.git.branches(path).branches == ["main"]


@row
def clone_repository(world: World) -> None:
    source, target = world.repository(), world.name()
    world.box.git.clone(f"/home/daytona/{source}", target)
    assert world.box.fs.download_file(f"{target}/a.txt") == b"1\n"


@row
def push_changes(world: World) -> None:
    bare, clone = world.remote()
    world.box.git.push(clone)
    assert world.box.git.branches(bare).branches == ["main"]


@row
def pull_changes(world: World) -> None:
    bare, clone = world.remote()
    world.box.git.push(clone)
    other = world.name()
    world.box.git.clone(f"/home/daytona/{bare}", other)
    world.box.git.commit(clone, "second", "Ann", "ann@example.com", allow_empty=True)
    world.box.git.push(clone)
    world.box.git.pull(other)
    assert world.box.process.exec("git log --format=%s", cwd=other).result == "second\nfirst\n"


@row
def add_remote(world: World) -> None:
    path = world.repository()
    world.box.git.remote_add(path, "up", "https://example.com/x.git")
    assert world.box.git.remote_get(path, "up") == "https://example.com/x.git"


@row
def list_remotes(world: World) -> None:
    assert world.box.git.remotes(world.repository()).remotes == []


@row
def reset_changes(world: World) -> None:
    path = world.repository()
    world.box.fs.upload_file(b"changed", f"{path}/a.txt")
    world.box.git.reset(path, mode="hard")
    assert world.box.fs.download_file(f"{path}/a.txt") == b"1\n"


@row
def restore_files(world: World) -> None:
    path = world.repository()
    world.box.fs.upload_file(b"changed", f"{path}/a.txt")
    world.box.git.restore(path, ["a.txt"])
    assert world.box.fs.download_file(f"{path}/a.txt") == b"1\n"


@row
def set_git_config(world: World) -> None:
    path = world.repository()
    world.box.git.set_config("core.editor", "ed", scope="local", path=path)
    assert world.box.git.get_config("core.editor", scope="local", path=path) == "ed"


@row
def get_git_config(world: World) -> None:
    assert world.box.git.get_config("no.such", scope="local", path=world.repository()) is None


@row
def configure_user(world: World) -> None:
    path = world.repository()
    world.box.git.configure_user("Bea", "bea@example.com", scope="local", path=path)
    assert world.box.git.get_config("user.email", scope="local", path=path) == "bea@example.com"


@row
def authenticate(world: World) -> None:
    world.box.git.dangerously_authenticate("ann", "secret", host="git.example.com")
    assert "ann:secret@git.example.com" in world.box.process.exec("cat ~/.git-credentials").result


@row
def get_commit_history(world: World) -> None:
    (commit,) = world.generated("GitApi").get_commit_history(world.repository())
    assert (commit.message, commit.author, commit.email) == ("first", "Ann", "ann@example.com")


# ------------------------------------------------------------------------------------------------------ about a sandbox


@row
def get_user_home_dir(world: World) -> None:
    assert world.box.get_user_home_dir() == "/home/daytona"


@row
def get_work_dir(world: World) -> None:
    assert world.box.get_work_dir() == "/home/daytona"


@row
def get_version(world: World) -> None:
    assert set(world.generated("InfoApi").get_version()) == {"version"}


@row
def update_env(world: World) -> None:
    world.box.update_env({"WORD": "one"})
    assert world.box.process.exec("echo $WORD").result == "one\n"
    world.box.update_env({}, unset=["WORD"])
    assert world.box.process.exec("echo $WORD").result == "\n"


@row
def initialize(world: World) -> None:
    api = async_api if world.is_async else sync_api
    assert world.generated("ServerApi").initialize(api.InitializeRequest(token="x"))


@row
def get_system_metrics(world: World) -> None:
    metrics = world.box.get_metrics_latest()
    assert metrics.cpu_count >= 1
    least = 1 if os.geteuid() == 0 else 0  # an ordinary user may have no cgroup, and then only what runs is counted
    assert metrics.mem_total > metrics.mem_used >= least


@row
def get_ports(world: World) -> None:
    assert isinstance(world.generated("PortApi").get_ports().ports, list)


@row
def is_port_in_use(world: World) -> None:
    assert world.generated("PortApi").is_port_in_use(65000).is_in_use is False


# ------------------------------------------------------------------------------------------------------------- programs


@row
def execute_command(world: World) -> None:
    result = world.box.process.exec("echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.result) == (3, "out\nerr\n")


@row
def code_run(world: World) -> None:
    result = world.box.process.code_run("print(6 * 7)")
    assert (result.exit_code, result.result, result.artifacts.charts) == (0, "42\n", [])


@row
def create_session(world: World) -> None:
    name = world.session()
    assert world.box.process.get_session(name).session_id == name


@row
def get_session(world: World) -> None:
    name, command = world.command("true")
    assert [each.id for each in world.box.process.get_session(name).commands] == [command.cmd_id]


@row
def list_sessions(world: World) -> None:
    name = world.session()
    assert name in [each.session_id for each in world.box.process.list_sessions()]


@row
def delete_session(world: World) -> None:
    name = world.session()
    world.box.process.delete_session(name)
    with pytest.raises(DaytonaNotFoundError):
        world.box.process.get_session(name)


@row
def session_execute_command(world: World) -> None:
    _, command = world.command("echo out; echo err >&2; false")
    assert (command.exit_code, command.stdout, command.stderr) == (1, "out\n", "err\n")
    _, command = world.command("true", run_async=True)
    assert (bool(command.cmd_id), command.exit_code) == (True, None)


@row
def get_session_command(world: World) -> None:
    name, command = world.command("exit_code() { return 7; }; exit_code")
    assert world.box.process.get_session_command(name, command.cmd_id).exit_code == 7


@row
def get_session_command_logs(world: World) -> None:
    name, command = world.command("echo out; echo err >&2", run_async=True)
    out: list[str] = []
    err: list[str] = []
    following = world.box.process.get_session_command_logs_async(name, command.cmd_id, out.append, err.append)
    if inspect.isawaitable(following):  # so it is with the sync client, too
        asyncio.run(asyncio.wait_for(following, GUARD_SECONDS))
    assert ("".join(out), "".join(err)) == ("out\n", "err\n")
    logs = world.box.process.get_session_command_logs(name, command.cmd_id)
    assert (logs.stdout, logs.stderr, logs.output) == ("out\n", "err\n", "\1\1\1out\n\2\2\2err\n")


@row
def send_input(world: World) -> None:
    name, command = world.command("read word; echo got $word > said", run_async=True)
    world.box.process.send_session_command_input(name, command.cmd_id, "it")
    world.box.process.execute_session_command(name, SessionExecuteRequest(command="true"))  # after it
    assert world.box.fs.download_file("said") == b"got it\n"


@row
def get_entrypoint_session(world: World) -> None:
    assert world.box.process.get_entrypoint_session().session_id == "entrypoint"


@row
def get_entrypoint_logs(world: World) -> None:
    assert world.box.process.get_entrypoint_logs().output == ""


@row
def create_pty_session(world: World) -> None:
    name, api = world.name(), async_api if world.is_async else sync_api
    request = api.PtyCreateRequest(id=name, cols=90, rows=30)
    assert world.generated("ProcessApi").create_pty_session(request).session_id == name
    assert world.box.process.get_pty_session_info(name).cols == 90


@row
def connect_pty_session(world: World) -> None:
    name, first = world.terminal()
    handle = world.box.process.connect_pty_session(name, **world.listening())
    handle.send_input("exit 3\n")
    assert [each.wait().exit_code for each in (first, handle)] == [3, 3]


@row
def get_pty_session(world: World) -> None:
    name, _ = world.terminal()
    info = world.box.process.get_pty_session_info(name)
    assert (info.id, info.active, info.rows, info.cols) == (name, True, 24, 80)


@row
def list_pty_sessions(world: World) -> None:
    name, _ = world.terminal()
    assert name in [each.id for each in world.box.process.list_pty_sessions()]


@row
def resize_pty_session(world: World) -> None:
    name, _ = world.terminal()
    info = world.box.process.resize_pty_session(name, PtySize(rows=50, cols=132))
    assert (info.rows, info.cols) == (50, 132)


@row
def delete_pty_session(world: World) -> None:
    name, handle = world.terminal()
    world.box.process.kill_pty_session(name)
    assert handle.wait().exit_code == 137
    with pytest.raises(DaytonaNotFoundError):
        world.box.process.get_pty_session_info(name)


# ---------------------------------------------------------------------------------------------------------- interpreter


@row
def create_interpreter_context(world: World) -> None:
    assert world.box.code_interpreter.create_context(cwd="/tmp").cwd == "/tmp"


@row
def list_interpreter_contexts(world: World) -> None:
    context = world.box.code_interpreter.create_context()
    assert context.id in [each.id for each in world.box.code_interpreter.list_contexts()]


@row
def delete_interpreter_context(world: World) -> None:
    context = world.box.code_interpreter.create_context()
    world.box.code_interpreter.delete_context(context)
    assert context.id not in [each.id for each in world.box.code_interpreter.list_contexts()]


@row
def execute_interpreter_code(world: World) -> None:
    world.box.code_interpreter.run_code("word = 'kept'")
    assert world.box.code_interpreter.run_code("print(word)").stdout == "kept\n"
