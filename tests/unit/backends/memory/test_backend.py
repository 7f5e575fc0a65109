"""The fake as its users see it: scripted programs, replies, snippets and a record of calls."""

import asyncio
import re
import signal

import pytest

from corral import AsyncSandbox, Sandbox, get_backend
from corral.backends.memory import Call, MemoryBackend
from corral.errors import BackendUnavailableError, CapabilityError


def test_it_is_in_the_registry() -> None:
    assert isinstance(get_backend("memory"), MemoryBackend)


def test_reply_to_a_command() -> None:
    backend = MemoryBackend()
    backend.reply("git status", stdout="clean\n")
    backend.reply(re.compile(r"^pip install (\S+)"), stderr="no network\n", exit_code=1)
    with Sandbox(backend=backend) as box:
        assert box.exec("git status").stdout == "clean\n"
        assert box.exec(["git", "status"]).stdout == "clean\n"
        result = box.exec("pip install numpy", cwd="/tmp", env={"A": "1"}, stdin="in")
        assert (result.exit_code, result.stderr) == (1, "no network\n")
        assert box.exec("git log").exit_code == 127
    assert [call.text for call in backend.calls] == ["git status", "git status", "pip install numpy", "git log"]
    call = backend.calls[2]
    assert (call.cwd, call.env["A"], call.stdin) == ("/tmp", "1", b"in")


def test_replies_are_used_up_in_order() -> None:
    backend = MemoryBackend()
    backend.reply("make test", exit_code=2, times=2)
    backend.reply("make test", stdout="ok\n")
    with Sandbox(backend=backend) as box:
        assert [box.exec("make test").exit_code for _ in range(4)] == [2, 2, 0, 0]


def test_reply_inside_a_script() -> None:
    backend = MemoryBackend()
    backend.reply("date", stdout="today\n")
    with Sandbox(backend=backend) as box:
        assert box.exec("echo now; date > file && cat file").stdout == "now\ntoday\n"


def test_slow_reply_is_out_of_time() -> None:
    backend = MemoryBackend()
    backend.reply("train", seconds=1000)
    with Sandbox(backend=backend) as box:
        assert box.exec("train", timeout=0.05).timed_out


def test_program_of_ones_own() -> None:
    async def greet(call: Call) -> int:
        name = (await call.stdin.readline()).decode().strip()
        call.out(f"hello {name} from {call.cwd}, {call.argv[1:]}\n")
        await call.files.write("greeted", name)
        call.err("done\n")
        return 5

    with Sandbox(backend=MemoryBackend(programs={"greet": greet})) as box:
        result = box.exec(["greet", "--loud"], stdin="Ada\nrest", cwd="/workspace")
        assert result.stdout == "hello Ada from /workspace, ('--loud',)\n"
        assert (result.stderr, result.exit_code) == ("done\n", 5)
        assert box.files.read("greeted") == b"Ada"


def test_program_that_raises_is_a_failed_program() -> None:
    async def crash(call: Call) -> int:
        raise ZeroDivisionError("oops")

    with Sandbox(backend=MemoryBackend(programs={"crash": crash})) as box:
        result = box.exec("crash")
    assert result.exit_code == 1
    assert "ZeroDivisionError: oops" in result.stderr


async def test_program_may_handle_signals() -> None:
    async def serve(call: Call) -> int:
        stopped = asyncio.Event()
        call.traps[signal.SIGTERM] = stopped.set
        call.out("up\n")
        await stopped.wait()
        call.out("down\n")
        return 0

    async with AsyncSandbox(backend=MemoryBackend(programs={"serve": serve})) as box:
        process = await box.start("serve")
        await anext(process.output())
        await process.signal(signal.SIGTERM)
        result = await process.wait()
        assert (result.exit_code, result.stdout) == (0, "up\ndown\n")
        with pytest.raises(CapabilityError):
            await (await box.start("sleep 9")).signal(signal.SIGSTOP)


def test_snippets_are_scripted() -> None:
    async def on_code(call: Call) -> int:
        call.out(f"{call.language}: {len(call.code or '')} characters, {call.argv[2:]}\n")
        return 0

    backend = MemoryBackend(on_code=on_code)
    backend.reply_code(re.compile(r"6 \* 7"), stdout="42\n", language="python")
    with Sandbox(backend=backend) as box:
        assert box.run_code("print(6 * 7)").stdout == "42\n"
        assert box.run_code("6 * 7", "js", args=["a"]).stdout == "javascript: 5 characters, ('a',)\n"
    assert [(call.language, call.text) for call in backend.calls] == [
        ("python", "print(6 * 7)"),
        ("javascript", "6 * 7"),
    ]


def test_snippet_without_a_script_says_what_to_do() -> None:
    backend = MemoryBackend()
    with Sandbox(backend=backend) as box:
        with pytest.raises(BackendUnavailableError, match="on_code"):
            box.run_code("print(1)")
        assert box.run_code("echo $1", "bash", args=["x"]).stdout == "x\n"
    assert backend.count_living() == 0


@pytest.mark.parametrize(
    ("text", "stdout", "code"),
    [
        ("echo a; echo b", "a\nb\n", 0),
        ("false && echo no; echo $?", "1\n", 0),
        ("false || echo yes", "yes\n", 0),
        ("true || echo no && echo yes", "yes\n", 0),
        ("A=1; echo \"$A ${A}\" '$A' \\$A", "1 1 $A $A\n", 0),
        ("A=1 env | true", None, 2),
        ("echo x > f; echo y >> f; cat < f", "x\ny\n", 0),
        ("echo hidden > /dev/null; echo err >&2; echo both 2>&1", "both\n", 0),
        ("cd /tmp && pwd", "/tmp\n", 0),
        ("cd /no/such || exit 9", "", 9),
        ("# comment\necho a \\\n b", "a b\n", 0),
        ("export X=1; env", None, 0),
        ("for x in a; do echo; done", "", 2),
        ("echo $(date)", "", 2),
        ("echo 'open", "", 2),
        ("exit", "", 0),
    ],
)
def test_small_shell(text: str, stdout: str | None, code: int) -> None:
    with Sandbox(backend=MemoryBackend()) as box:
        result = box.exec(text)
    assert result.exit_code == code, result.stderr
    assert stdout is None or result.stdout == stdout


def test_what_a_fake_cannot_do_it_says() -> None:
    backend = MemoryBackend()
    with Sandbox(backend=backend) as box:
        with pytest.raises(CapabilityError):
            box.start("true", pty=True)
        with pytest.raises(CapabilityError):
            box.exec("true", user="root")
        with pytest.raises(CapabilityError):
            box.exec("true", hidden=["/etc"])
    with pytest.raises(CapabilityError):
        Sandbox(backend=backend, packages=["numpy"])
