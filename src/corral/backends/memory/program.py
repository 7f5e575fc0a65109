"""The built-in programs, and how one is found by its name. None of them touches the host."""

from __future__ import annotations

import asyncio
import math
import posixpath
from collections.abc import Mapping
from dataclasses import replace

from corral.backends.memory.call import Call, Program
from corral.backends.memory.shell import run_text
from corral.backends.memory.tree import Node
from corral.base.command import plain_argv
from corral.errors import CorralError

NOT_EXECUTABLE, NOT_FOUND = 126, 127
_FOLDERS = ("/bin", "/usr/bin")


async def true(call: Call) -> int:
    """Succeed."""
    return 0


async def false(call: Call) -> int:
    """Fail."""
    return 1


async def echo(call: Call) -> int:
    """Print its arguments."""
    words, end = (call.argv[2:], "") if call.argv[1:2] == ("-n",) else (call.argv[1:], "\n")
    call.out(" ".join(words) + end)
    return 0


async def cat(call: Call) -> int:
    """Print files, or its input."""
    code = 0
    for name in call.argv[1:] or ("-",):
        if name == "-":
            async for piece in call.stdin:
                call.out(piece)
            continue
        try:
            async for piece in call.files.read_stream(posixpath.join(call.cwd, name)):
                call.out(piece)
        except CorralError as error:
            call.err(f"cat: {error.message}\n")
            code = 1
    return code


async def pwd(call: Call) -> int:
    """Print the folder it runs in."""
    call.out(f"{call.cwd}\n")
    return 0


async def env(call: Call) -> int:
    """Print the environment."""
    call.out("".join(f"{name}={value}\n" for name, value in call.env.items()))
    return 0


async def sleep(call: Call) -> int:
    """Wait."""
    try:
        seconds = float(call.argv[1])
    except (IndexError, ValueError):
        seconds = -1.0
    if not seconds >= 0 or math.isnan(seconds):
        call.err("sleep: give seconds\n")
        return 1
    await asyncio.sleep(min(seconds, 1e6))
    return 0


async def mkfifo(call: Call) -> int:
    """Make a FIFO, so that code can be tested that meets one."""
    for name in call.argv[1:]:
        with call.tree.lock:
            spot = call.tree.find(posixpath.join(call.cwd, name))
            if spot.node is not None:
                call.err(f"mkfifo: {name}: File exists\n")
                return 1
            call.tree.put(spot, Node("fifo", 0o644))
    return 0


async def shell(call: Call) -> int:
    """`sh -c TEXT`, `sh FILE`, or a script from its input."""
    _, *words = plain_argv(call.argv)
    if words[:1] == ["-c"]:
        text = words[2:3] if words[1:2] == ["--"] else words[1:2]
        return await run_text(call, "".join(text), name="sh")
    if words:
        try:
            source = await call.files.read(posixpath.join(call.cwd, words[0]))
        except CorralError as error:
            call.err(f"sh: {error.message}\n")
            return NOT_FOUND
        return await run_text(call, source.decode("utf-8", "surrogateescape"), name=words[0], args=tuple(words[1:]))
    return await run_text(call, (await call.stdin.read()).decode("utf-8", "surrogateescape"), name="sh")


BUILT_IN: Mapping[str, Program] = {
    "true": true,
    "false": false,
    "echo": echo,
    "cat": cat,
    "pwd": pwd,
    "env": env,
    "sleep": sleep,
    "mkfifo": mkfifo,
    "sh": shell,
    "bash": shell,
}


async def run_program(call: Call, programs: Mapping[str, Program]) -> int:
    """Run what `argv[0]` names: a program by its name, or a script in the tree."""
    name = call.argv[0]
    folder, base = posixpath.split(name)
    if "/" in name and not (folder in _FOLDERS and base in programs):
        return await _run_file(call, programs)
    program = programs.get(base)
    if program is None:
        call.err(f"sh: 1: {name}: not found\n")
        return NOT_FOUND
    return await program(call)


async def _run_file(call: Call, programs: Mapping[str, Program]) -> int:
    """A file of the tree: a script for a program that we know, or nothing that a fake could run."""
    name = call.argv[0]
    path = posixpath.join(call.cwd, name)
    try:
        info = await call.files.stat(path)
        if info.kind != "file" or not info.mode & 0o111:
            call.err(f"sh: 1: {name}: Permission denied\n")
            return NOT_EXECUTABLE
        first = (await call.files.read(path)).split(b"\n", 1)[0].decode("utf-8", "surrogateescape")
    except CorralError:
        call.err(f"sh: 1: {name}: not found\n")
        return NOT_FOUND
    words = first.removeprefix("#!").split()
    interpreter = posixpath.basename(words[0]) if first.startswith("#!") and words else ""
    if interpreter not in programs:
        call.err(f"sh: 1: {name}: Exec format error\n")
        return NOT_EXECUTABLE
    return await programs[interpreter](replace(call, argv=(interpreter, path, *call.argv[1:])))
