"""Tools on real sandboxes: the rules of a shell tool hold for all that a command starts: the kernel enforces them.

Each way round is also tried where only words are checked, and works there: so it is the kernel that stops it.
"""

import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from corral import Environment, SandboxGoneError
from corral.backends.embedded import EmbeddedBackend
from corral.client.sandbox import AsyncSandbox
from corral.tools import CodeTool, FileTools, ShellTool, ToolText
from corral.tools.view import View, Viewer
from support.detours import DETOURS, HOME, SECRET
from support.leftovers import list_descendants
from support.user import OrdinaryUser

FILE = f"{HOME}/precious"
UNMEASURED = {"the folder can't be listed", "a hard link in a folder that can't be listed"}
# Rootless, folders that can't be measured count as a full disk, and their maker is ended.
CHOSEN = [pytest.param(name, marks=pytest.mark.needs_root if name in UNMEASURED else ()) for name in DETOURS]


@pytest.fixture(scope="module")
async def backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBackend]:
    backend = EmbeddedBackend(tmp_path_factory.mktemp("data"))
    yield backend
    await backend.aclose()


@pytest.fixture(scope="module")
async def env(backend: EmbeddedBackend) -> AsyncIterator[Environment]:
    async with Environment(backend=backend, exec_timeout=60) as env:
        yield env


@pytest.fixture
async def box(env: Environment) -> AsyncIterator[AsyncSandbox]:
    """The sandbox that the tools get, with its files as they were."""
    async with env.open() as box:
        await box.exec(["find", HOME, "/tmp", "-mindepth", "1", "-delete"], check=True)
        await box.files.write(FILE, b"old\n")
        await box.files.write(f"{HOME}/vault/key", f"{SECRET}\n")
        await box.files.write(f"{HOME}/.env", f"TOKEN={SECRET}\n")
        await box.files.write(f"{HOME}/list", FILE)
        await box.files.write(f"{HOME}/script.py", f"import os; os.unlink({FILE!r})")
        yield box


async def call(tool: ShellTool, command: str) -> ToolText:
    return await tool.call({"command": command})


@pytest.fixture
def by_words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's half switched off."""

    async def make(self: Viewer, box: AsyncSandbox, *, workdir: str) -> View:
        return View()

    monkeypatch.setattr(Viewer, "make", make)


@dataclass(frozen=True)
class Way:
    """A way round the words: rules that let it through, and a command that removes FILE all the same."""

    rules: dict[str, Any]
    command: str


# What must not happen: FILE is gone.
WAYS_TO_REMOVE = {
    "sh -c, where sh is allowed": Way({"allowed": ["sh", "cat"]}, f"sh -c 'rm -f {FILE}'"),
    "env, where env is allowed": Way({"allowed": ["env", "cat"]}, f"env rm -f {FILE}"),
    "env by path": Way({"allowed": ["env"]}, f"env /bin/rm -f {FILE}"),
    "find -exec": Way({"allowed": ["find"]}, f"find {FILE} -exec rm -f {{}} ';'"),
    "find -execdir": Way({"allowed": ["find"]}, f"find {FILE} -execdir /usr/bin/unlink {{}} ';'"),
    "xargs": Way({"allowed": ["xargs"]}, f"xargs -a {HOME}/list rm -f"),
    "timeout": Way({"allowed": ["timeout"]}, f"timeout 5 rm -f {FILE}"),
    "a shell's exec": Way({"allowed": ["sh"]}, f"sh -c 'exec /usr/bin/rm -f {FILE}'"),
    "another program that removes": Way({"allowed": ["sh"]}, f"sh -c 'mv {FILE} /tmp/taken'"),
    "an interpreter": Way({"allowed": ["sh"]}, f"sh -c 'python3 {HOME}/script.py'"),
    "blocked in a text that is put together": Way({"blocked": ["rm"]}, f"sh -c 'a=r; b=m; $a$b -f {FILE}'"),
    "blocked under another name of it": Way({"blocked": ["python3"]}, f"sh -c 'a=pyth; ${{a}}on3 {HOME}/script.py'"),
    "blocked through a link": Way({"blocked": ["rm"]}, f"sh -c 'ln -s /bin/r? /tmp/other; /tmp/other -f {FILE}'"),
    "blocked through a copy": Way({"blocked": ["rm"]}, f"sh -c 'cp /bin/r? /tmp/copied && /tmp/copied -f {FILE}'"),
    "blocked by the loader": Way({"blocked": ["rm"]}, f"sh -c '/lib*/ld-*.so* /bin/r? -f {FILE}'"),
    "readonly, and a command that was allowed": Way({"readonly": True, "allowed": ["rm"]}, f"rm -f {FILE}"),
    "readonly, and an interpreter": Way(
        {"readonly": True, "allowed": ["python3"]}, f"python3 -c 'import os; os.unlink(\"{FILE}\")'"
    ),
    "readonly, and find -delete": Way({"readonly": True, "allowed": ["find"]}, f"find {FILE} -delete"),
    "readonly, and a shell": Way({"readonly": True, "allowed": ["sh", "rm"]}, f"sh -c 'rm -f {FILE}'"),
    "readonly, and git": Way({"readonly": True, "allowed": ["git"]}, f"git -c alias.x='!rm -f {FILE}' x"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS_TO_REMOVE)
async def test_rule_can_not_be_gone_round_by(env: Environment, box: AsyncSandbox, way: str) -> None:
    await call(ShellTool(env, **WAYS_TO_REMOVE[way].rules), WAYS_TO_REMOVE[way].command)
    assert await box.files.read(FILE) == b"old\n"


async def test_hard_links_to_a_blocked_program_are_that_program(env: Environment, box: AsyncSandbox) -> None:
    """As /usr/bin/perl and /usr/bin/perl5.36.0 are one file."""
    folder = f"{HOME}/.local/bin"
    await box.exec(f"mkdir -p {folder} && cp /bin/rm {folder}/zap && ln {folder}/zap {folder}/zap5.36.0", check=True)
    for program in ("zap5.36.0", f"{folder}/zap5.36.0", "sh -c 'z?p; zap5.36.0"):
        command = f"{program} -f {FILE}" + ("'" if program.startswith("sh") else "")
        await call(ShellTool(env, blocked=["zap"]), command)
        assert await box.files.read(FILE) == b"old\n", command
    await call(ShellTool(env, blocked=["other"]), f"zap5.36.0 -f {FILE}")
    assert not await box.files.exists(FILE)


async def test_versions_of_a_blocked_program_are_that_program(env: Environment, box: AsyncSandbox) -> None:
    """As /usr/bin/perl5.36-x86_64-linux-gnu is another file than /usr/bin/perl."""
    folder = f"{HOME}/.local/bin"
    names = ("zap5.36-x86_64-linux-gnu", "x86_64-linux-gnu-zap-12", "zap-static", "zapper")
    await box.exec(f"mkdir -p {folder}; for x in {' '.join(names)}; do cp /bin/rm {folder}/$x; done", check=True)
    tool = ShellTool(env, blocked=["zap"], enforcement="kernel")
    for name in names[:-1]:
        await call(tool, f"{name} -f {FILE}; cp {folder}/{name} /tmp/copied && /tmp/copied -f {FILE}")
        assert await box.files.read(FILE) == b"old\n", name
    await call(tool, f"zapper -f {FILE}")
    assert not await box.files.exists(FILE)


# git need not be there; the loader is called otherwise on some machines.
UNSURE = {"readonly, and git", "blocked by the loader"}


@pytest.mark.usefixtures("by_words_only")
@pytest.mark.parametrize("way", [way for way in WAYS_TO_REMOVE if way not in UNSURE])
async def test_it_is_the_kernel_that_stops(env: Environment, box: AsyncSandbox, way: str) -> None:
    text = await call(ShellTool(env, **WAYS_TO_REMOVE[way].rules), WAYS_TO_REMOVE[way].command)
    assert not await box.files.exists(FILE), f"this way does not work, and so proves nothing: {text}"


# What must not happen: SECRET is seen.
WAYS_TO_SEE = {
    "grep that goes into folders": "grep -r . .",
    "a shell": "sh -c 'cat v*/k* .e*'",
    "find -exec": "find . -type f -exec cat {} +",
    "a link made on the way": "sh -c 'ln -s $PWD/vault /tmp/door; cat /tmp/door/key'",
    "its own root": "sh -c 'cat /proc/self/root/home/daytona/v*/k* /proc/self/cwd/.e*'",
    "tar": "sh -c 'tar c . | cat'",
    "python": "python3 -c 'print(open(chr(46) + \"env\").read())'",
}


@pytest.mark.parametrize("way", WAYS_TO_SEE)
async def test_ignored_file_can_not_be_seen_by(env: Environment, box: AsyncSandbox, way: str) -> None:
    text = await call(ShellTool(env, ignore=["vault/**", ".env"]), WAYS_TO_SEE[way])
    assert SECRET not in text
    assert (await box.files.read(f"{HOME}/vault/key")).decode() == f"{SECRET}\n"


@pytest.mark.usefixtures("by_words_only")
@pytest.mark.parametrize("way", WAYS_TO_SEE)
async def test_it_is_the_kernel_that_hides(env: Environment, box: AsyncSandbox, way: str) -> None:
    assert SECRET in await call(ShellTool(env, ignore=["vault/**", ".env"]), WAYS_TO_SEE[way])


@pytest.mark.parametrize("detour", CHOSEN)
async def test_ignored_file_can_not_be_seen_after(env: Environment, box: AsyncSandbox, detour: str) -> None:
    steps = DETOURS[detour]
    await box.files.remove(f"{HOME}/.env")
    try:
        await box.exec(steps.before, check=True)
        tool = ShellTool(env, ignore=[steps.rule])
        assert SECRET not in "".join([await call(tool, command) for command in steps.commands])
    finally:
        await box.exec(["chmod", "-R", "u+rwx", HOME], check=True)


@pytest.mark.usefixtures("by_words_only")
@pytest.mark.parametrize("detour", CHOSEN)
async def test_it_is_the_kernel_that_keeps_hidden(env: Environment, box: AsyncSandbox, detour: str) -> None:
    steps = DETOURS[detour]
    await box.files.remove(f"{HOME}/.env")
    try:
        await box.exec(steps.before, check=True)
        tool = ShellTool(env, ignore=[steps.rule])
        assert SECRET in "".join([await call(tool, command) for command in steps.commands])
    finally:
        await box.exec(["chmod", "-R", "u+rwx", HOME], check=True)


@pytest.mark.parametrize("name", ["n" * 100, "n" * 10], ids=["long names", "many folders"])
async def test_tree_that_is_deeper_than_paths_go_stops_no_command(
    env: Environment, box: AsyncSandbox, name: str
) -> None:
    making = f"import os\nfor _ in range({6000 // len(name + '/')}): os.mkdir({name!r}); os.chdir({name!r})"
    await box.exec(["python3", "-c", making], check=True)
    text = await call(ShellTool(env, ignore=["key"], enforcement="kernel"), "cat precious v*/key")
    assert text.startswith("old\n")
    assert SECRET not in text


@pytest.mark.needs_root  # rootless, folders that can't be measured count as a full disk, and their maker is ended
async def test_folders_beyond_counting_that_can_not_be_listed_are_no_hiding_place(
    env: Environment, box: AsyncSandbox
) -> None:
    await box.exec("for x in $(seq 60); do mkdir shut$x; cp vault/key shut$x; chmod 311 shut$x; done", check=True)
    try:
        text = await call(ShellTool(env, ignore=["key"]), "sh -c 'cat shut55/k\"\"ey'")
        assert text.startswith("Error: Access denied: too many unreadable folders, ")
        assert f"such as {HOME}/shut" in text
    finally:
        await box.exec("chmod 755 shut*", check=True)


async def test_ignored_things_may_be_missing_many_or_links(env: Environment, box: AsyncSandbox) -> None:
    await box.exec(f"for x in $(seq 3000); do echo {SECRET} > many$x.dat; done", check=True, timeout=60)
    await box.files.symlink("door.link", f"{HOME}/vault")
    await box.files.symlink("all.link", "/")
    await box.files.symlink("nowhere.link", "nowhere")
    rules = ["not-there/**", "*/not-there/**", "/not/there", "*.dat", "*.link", ".env"]
    text = await call(ShellTool(env, ignore=rules), "grep -r . .")
    assert SECRET not in text
    assert "old" in text


async def test_rules_are_about_the_folder_that_the_tool_works_in(env: Environment, box: AsyncSandbox) -> None:
    await box.files.write("inner/vault/key", SECRET)
    tool = ShellTool(env, ignore=["vault/**"], cwd="inner")
    assert await call(tool, "cat vault/key") == f"Error: Access denied: {HOME}/inner/vault/key"
    assert await call(tool, "cat ../precious") == f"Error: Access denied: {HOME}/precious"
    assert SECRET not in await call(tool, "grep -r . .")


@pytest.mark.usefixtures("box")
async def test_what_is_allowed_works(env: Environment) -> None:
    tool = ShellTool(env, readonly=True)
    assert await tool.capabilities() == await tool.capabilities()
    assert (await tool.capabilities()).kernel
    for command, begins in {
        "cat precious": "old\n[exit code: 0",
        "egrep o.d precious": "old\n",
        "which cat": "/",
        "wc -l precious": "1 precious\n",
        f"ls {HOME}": "list\nprecious\nscript.py\nvault\n",
        "cat nothing": "cat: nothing: No such file",
    }.items():
        assert (await call(tool, command)).startswith(begins), command


@pytest.mark.usefixtures("box")
async def test_allowed_script_keeps_its_interpreter(env: Environment) -> None:
    """`which` is a shell script on many systems, and a venv's programs are Python."""
    async with env.open() as box:
        await box.files.write(f"{HOME}/.local/bin/mine", b"#!/usr/bin/env python3\nprint('mine')\n", mode=0o755)
    tool = ShellTool(env, allowed=["mine"])
    assert (await call(tool, "mine")).startswith("mine\n[exit code: 0")
    by_path = ShellTool(env, allowed=["/bin/cat"])
    assert (await call(by_path, "/bin/cat precious")).startswith("old\n[exit code: 0")
    assert (await call(by_path, "/bin/ls")).error == "policy"
    assert (await call(tool, "python3 -c 1")).error == "policy"


@pytest.mark.usefixtures("box")
async def test_program_that_was_installed_meanwhile_is_hidden_too(env: Environment) -> None:
    tool = ShellTool(env, allowed=["env"])
    assert (await call(tool, "env new")).startswith("env: ")
    async with env.open() as box:
        await box.files.write(f"{HOME}/.local/bin/new", b"#!/bin/sh\necho new\n", mode=0o755)
    assert "Permission denied" in await call(tool, "env new")
    assert (await call(ShellTool(env), "new")).startswith("new\n")


async def test_whole_shell_with_the_kernel_alone(env: Environment, box: AsyncSandbox) -> None:
    tool = ShellTool(env, readonly=True, ignore=["vault/**"], enforcement="kernel")
    assert (await call(tool, "cat precious | wc -l; for x in 1 2; do echo $x; done")).startswith("1\n1\n2\n")
    await call(tool, f"rm -f {FILE}; echo new > {FILE}; cat vault/key")
    assert await box.files.read(FILE) == b"old\n"
    assert SECRET not in await call(tool, "cat vault/key; tar c vault | cat")


async def test_restricted_and_unrestricted_tools_share_a_sandbox(env: Environment, box: AsyncSandbox) -> None:
    assert (await call(ShellTool(env, readonly=True), "cat precious")).ok
    assert (await CodeTool(env).call({"code": f"open('{FILE}', 'w').write('new')", "language": "python"})).ok
    assert (await call(ShellTool(env, readonly=True), "cat precious")).startswith("new\n")


async def test_flood_is_bounded_and_said(env: Environment, box: AsyncSandbox) -> None:
    code = "import os\nfor _ in range(3000): os.write(1, b'x' * 99_999 + b'\\n')"
    text = await CodeTool(env, max_timeout=100).call({"code": code, "language": "python", "timeout_seconds": 100})
    assert len(text) <= 30_000
    assert text.truncated
    assert "of 300000000 bytes of output the middle was not kept" in text


async def test_rest_of_what_was_cut_is_got_in_the_way_that_is_named(env: Environment, box: AsyncSandbox) -> None:
    await box.files.write("big", "".join(f"line {number}\n" for number in range(1, 20_001)))
    tool = ShellTool(env, readonly=True)
    text, seen = await call(tool, "cat big"), 0
    while "left out" in text:
        assert "; request a part of it, for example with tail -n +LINE FILE …]" in text
        last = int(text.partition("\n[… ")[0].rpartition("line ")[2])
        assert last > seen, "no step forward"
        seen, text = last, await call(tool, f"tail -n +{last + 1} big")
    assert text.startswith(f"line {seen + 1}\n")
    assert "\nline 20000\n[exit code: 0" in text


async def test_rest_of_a_long_line_is_got_in_the_way_that_is_named(env: Environment, box: AsyncSandbox) -> None:
    await box.files.write("long", "first\n" + "é" * 50_000 + "THE END\n")
    text = await FileTools(env)["read_file"].call({"path": "long"})
    found = re.search(r"\[… (\d+) more bytes in this line; in a shell: (sed .*)\]", text)
    assert found is not None
    rest = await ShellTool(env, max_chars=200_000).call({"command": found[2].replace("FILE", "long")})
    said = rest.rpartition("\n[exit code: 0")[0]
    assert len(said.encode()) == int(found[1])
    assert said.endswith("THE END")


async def test_snippet_of_five_megabytes_runs(env: Environment, box: AsyncSandbox) -> None:
    code = f"text = '{'x' * 5_000_000}'\nprint(len(text))"
    assert (await CodeTool(env).call({"code": code, "language": "python"})).startswith("5000000\n")


async def test_state_stays_in_files_and_not_in_globals(env: Environment, box: AsyncSandbox) -> None:
    tool = CodeTool(env)
    await tool.call({"code": "open('kept', 'w').write('yes'); x = 1", "language": "python"})
    assert (await tool.call({"code": "cat kept", "language": "bash"})).startswith("yes\n")
    assert "NameError" in await tool.call({"code": "print(x)", "language": "python"})


@pytest.mark.parametrize("name", ["a b", "quote'd", 'double"d', "new\nline", "-rf", "*", "$HOME", "ünï"])
async def test_odd_names_are_ordinary(env: Environment, box: AsyncSandbox, name: str) -> None:
    tools = FileTools(env)
    path = f"{HOME}/odd {name}/{name}"
    assert (await tools["write_file"].call({"path": path, "content": "needle\n"})).ok
    assert await tools["read_file"].call({"path": path}) == "     1\tneedle"
    assert (await tools["grep"].call({"pattern": "needle", "output_mode": "count"})).endswith(": 1")
    assert (await tools["ls"].call({"path": f"{HOME}/odd {name}"})).count("(7 bytes)") == 1
    assert (await tools["edit_file"].call({"path": path, "old_string": "needle", "new_string": "x"})).ok
    assert await box.files.read(path) == b"x\n"


async def test_dead_sandbox_is_an_error_and_then_there_is_a_new_one(
    env: Environment, backend: EmbeddedBackend, box: AsyncSandbox
) -> None:
    tool = CodeTool(env)
    arguments = {"code": "print(1)", "language": "python"}
    assert (await tool.call(arguments)).ok
    launcher = backend._launcher.ask({"op": "hello"})["pid"]
    for pid, name in list_descendants(launcher).items():
        if name == "corral-init":
            with contextlib.suppress(ProcessLookupError):  # a spare of it, which has gone with it
                os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxGoneError):
        await tool.call(arguments)
    assert (await tool.call(arguments)).ok
    async with env.open() as fresh:
        assert fresh.id != box.id
        assert not await fresh.files.exists(FILE)


AS_A_USER = """
import asyncio
from corral import Environment
from corral.tools import ShellTool

async def main():
    async with Environment(exec_timeout=60) as env:
        async with env.open() as box:
            await box.files.write("precious", b"old")
            await box.files.write("vault/key", b"hunter2")
            await box.exec("ln vault/key /tmp/other", check=True)
            deep = "for x in $(seq 60); do mkdir {0}; cd {0}; done; echo hunter2 > key"
            await box.exec(deep.format("n" * 100), check=True)
            await box.files.write("empty.py", b"open('precious', 'w')")
        for rules, command in [
            ({"readonly": True, "allowed": ["sh", "rm"]}, "sh -c 'rm -f precious; echo new > precious'"),
            ({"allowed": ["find"]}, "find precious -exec rm {} ';'"),
            ({"allowed": ["env"]}, "env rm precious"),
            ({"blocked": ["rm"]}, "sh -c 'a=r; b=m; $a$b -f precious'"),
            ({"ignore": ["vault/**", "key"]}, "grep -r hunter ."),
            ({"ignore": ["vault/**"]}, "sh -c 'cat /t*/oth*'"),
            ({"ignore": ["key"]}, "sh -c 'for x in $(seq 60); do cd " + "n" * 100 + "; done; cat k*'"),
            ({"ignore": ["vault/key"]}, "sh -c 'mv vault moved; mv vault/key moved; chmod 311 vault'"),
            ({"ignore": ["vault/key"]}, "sh -c 'cat moved moved/key; cd vault; cat k*; cat k\\"\\"ey'"),
            ({"blocked": ["python3"]}, "sh -c 'a=pyth; ${a}on3 empty.py'"),
            ({"readonly": True}, "cat precious"),
        ]:
            tool = ShellTool(env, **rules)
            assert (await tool.capabilities()).kernel
            said = await tool.call({"command": command})
            assert "hunter2" not in said, said
        assert said.startswith("old\\n[exit code: 0"), said
        async with env.open() as box:
            assert await box.files.read("precious") == b"old"
    print("held")

asyncio.run(main())
"""


@pytest.mark.needs_root
@pytest.mark.needs_user
@pytest.mark.needs_userns
def test_rules_hold_for_an_ordinary_user_as_well(ordinary_user: OrdinaryUser) -> None:
    done = ordinary_user.run(AS_A_USER, timeout=100)
    assert done.stdout == "held\n", done.stderr
