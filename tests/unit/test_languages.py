"""The language table, and its bootstraps run by the interpreters of this machine."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral import languages
from corral.errors import SpecError, UnknownLanguageError
from corral.languages import Language, Runtime, choose_runtime, find_language, language_names, register_language

BUILT_IN = ["python", "bash", "sh", "javascript", "typescript"]
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def table() -> Iterator[None]:
    """What a test registers is forgotten afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(languages, "_table", dict(languages._table))
        yield


def run(code: str | bytes, language: str, *, folder: Path, args: tuple[str, ...] = (), stdin: str = "") -> Done:
    """Run a snippet as a sandbox would: source by file, working folder `folder`."""
    source = code.encode() if isinstance(code, str) else code
    runtime = choose_runtime(find_language(language), source, ["node"] if language == "javascript" else None)
    assert runtime is not None
    private = folder.with_name("private")
    private.mkdir(exist_ok=True)
    file = (folder if runtime.beside else private) / f"snippet.{runtime.extension}"
    file.write_bytes(source)
    argv = [word.replace("{file}", str(file)) for word in runtime.argv]
    if language == "python":
        argv[0] = sys.executable
    return subprocess.run([*argv, *args], cwd=folder, input=stdin, capture_output=True, text=True, timeout=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working folder."""
    path = tmp_path / "work"
    path.mkdir()
    return path


# ----------------------------------------------------------------------------------------------------------- the table


def test_names_people_write_are_known() -> None:
    written = {
        "python": ["python", "py", "Python3", " PY3\n"],
        "bash": ["bash", "shell", "zsh", "console", "shell-session"],
        "sh": ["sh", "dash"],
        "javascript": ["JavaScript", "js", "node", "mjs"],
        "typescript": ["TypeScript", "ts", "tsx", "mts"],
    }
    for name, names in written.items():
        assert {find_language(other).name for other in names} == {name}


@pytest.mark.parametrize("written", ["", "cobol", "py thon", "pyth\0n"])
def test_unknown_language_is_named_and_the_known_ones_listed(written: str) -> None:
    with pytest.raises(UnknownLanguageError) as caught:
        find_language(written)
    assert repr(written) in str(caught.value)
    assert all(name in caught.value.hint for name in BUILT_IN)


def test_built_in_languages_have_no_name_in_common_and_give_every_runtime_the_file() -> None:
    assert language_names()[: len(BUILT_IN)] == BUILT_IN
    every = [find_language(name) for name in BUILT_IN]
    names = [name for language in every for name in (language.name, *language.aliases)]
    assert len(names) == len(set(names))
    for language in every:
        assert language.hint
        assert all(runtime.argv.count("{file}") == 1 for runtime in language.runtimes)
        assert len({runtime.name for runtime in language.runtimes}) == len(language.runtimes)


@pytest.mark.usefixtures("table")
def test_language_of_ones_own_takes_a_few_lines() -> None:
    register_language(Language("Ruby", ("rb",), (Runtime("ruby", ("ruby", "{file}"), "rb"),)))
    assert find_language("rb") is find_language("ruby")
    assert language_names() == [*BUILT_IN, "Ruby"]


RUBY = Runtime("ruby", ("ruby", "{file}"), "rb")


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("language", "named"),
    [
        (Language("python", (), (RUBY,)), "'python'"),
        (Language("ruby", ("PY",), (RUBY,)), "'py'"),
        (Language(" ", (), (RUBY,)), "empty name"),
        (Language("ruby", (), ()), "no runtime"),
        (Language("ruby", (), (Runtime("ruby", ("ruby", "-e"), "rb"),)), "does not use the snippet"),
    ],
)
def test_language_that_can_not_be_is_refused_and_changes_nothing(language: Language, named: str) -> None:
    before = dict(languages._table)
    with pytest.raises(SpecError, match=re.escape(named)):
        register_language(language)
    assert languages._table == before


@pytest.mark.usefixtures("table")
def test_replaced_language_keeps_none_of_its_old_names() -> None:
    register_language(Language("python", ("snake",), (RUBY,)), replace=True)
    assert find_language("snake").runtimes == find_language("python").runtimes == (RUBY,)
    with pytest.raises(UnknownLanguageError):
        find_language("py")


@pytest.mark.usefixtures("table")
def test_alias_is_taken_from_its_owner_only_by_replacing() -> None:
    register_language(Language("zsh", (), (Runtime("zsh", ("zsh", "{file}"), "zsh"),)), replace=True)
    assert find_language("zsh").name == "zsh"
    assert find_language("shell").name == "bash"


# ------------------------------------------------------------------------------------------------ choosing the runtime


def choose(language: str, code: str, probed: list[str] | None) -> str | None:
    runtime = choose_runtime(find_language(language), code.encode(), probed)
    return runtime and runtime.name


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("console.log(1)", "node"),
        ("const fs = require('fs')", "node"),
        ("await fetch(x)", "node"),
        ("import fs from 'fs'", "node:module"),
        ("  import 'x'", "node:module"),
        ("import{a}from'a';import*as b from'b'", "node:module"),
        ("/* why */ export default 3", "node:module"),
        ("console.log(import.meta.url)", "node:module"),
        ("/[`'\"]/.test(x)\nexport const y = 1", "node:module"),
        ("const x = await import('x')", "node:beside"),
        ("// import x from 'y'\nx", "node"),
        ("const text = `\nimport x from 'y'\n`", "node"),
        ("const text = 'a\\'\\\nimport x from y'", "node"),
        ("important = 1; exported = 2", "node"),
    ],
)
def test_javascript_is_a_module_when_it_imports_or_exports(code: str, name: str) -> None:
    assert choose("javascript", code, ["node", "bun"]) == name


@pytest.mark.parametrize(
    ("code", "probed", "name"),
    [
        ("let x: number", ["ts-node", "tsx", "node", "deno", "bun"], "bun"),
        ("let x: number", ["ts-node", "tsx", "node", "deno"], "deno"),
        ("let x: number", ["ts-node", "tsx", "node"], "node"),
        ("let x: number", ["ts-node", "tsx"], "tsx"),
        ("let x: number", ["ts-node"], "ts-node"),
        ("let x: number", [], None),
        ("const fs = require('fs')", ["node"], "node:commonjs"),
        # What Node.js can't do by stripping types goes to something that can, if there is one.
        ("enum A { B }", ["ts-node", "node"], "ts-node"),
        ("class A { constructor(private x: number) {} }", ["ts-node", "node"], "ts-node"),
        ("import { x } from './x'", ["tsx", "node"], "tsx"),
        ("enum A { B }", ["node"], "node"),
        ("// enum A { B }\nlet x: number", ["ts-node", "node"], "node"),
    ],
)
def test_typescript_runs_on_the_best_that_is_there(code: str, probed: list[str], name: str | None) -> None:
    assert choose("typescript", code, probed) == name


def test_language_without_probe_takes_its_first_runtime() -> None:
    assert choose("python", "", None) == "python3"


@pytest.mark.timeout(120)  # a quadratic look would take hours
def test_look_at_hostile_source_is_bounded() -> None:
    for piece in ("/*", '"\\"', "`", "=/[", "constructor(", "import ", "enum ", "\n", "=     ", "\\"):
        text = piece * (5_000_000 // len(piece))
        is_module = piece == "import "
        assert choose("javascript", text, ["node"]) == ("node:module" if is_module else "node"), piece
        assert choose("typescript", text, ["node"]) == "node", piece


@pytest.mark.parametrize("language", ["javascript", "typescript"])
def test_probe_prints_only_programs_of_the_table(language: str) -> None:
    found = find_language(language)
    done = subprocess.run(["/bin/sh", "-c", found.probe], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) <= {runtime.program for runtime in found.runtimes}


@pytest.mark.parametrize(
    ("version", "usable"),
    [
        ("v18.20.8", False), ("v22.17.1", False), ("v22.18.0", True), ("v23.5.0", False), ("v23.6.0", True),
        ("v24.0.0", True), ("v100.1.0", True), ("", False), ("nonsense", False),
    ],
)  # fmt: skip
def test_probe_knows_which_node_strips_types(tmp_path: Path, version: str, usable: bool) -> None:
    node = tmp_path / "node"
    node.write_text(f"#!/bin/sh\necho '{version}'\n")
    node.chmod(0o755)
    argv = ["/bin/sh", "-c", find_language("typescript").probe]
    done = subprocess.run(argv, capture_output=True, text=True, env={"PATH": str(tmp_path)})
    assert done.stdout == ("node\n" if usable else "")


# -------------------------------------------------------------------------------------------------------------- shells


def test_shell_error_names_file_and_line(folder: Path) -> None:
    for language in ("bash", "sh"):
        done = run("echo one\nnowhere", language, folder=folder)
        assert done.stdout == "one\n"
        assert done.returncode == 127
        assert re.search(r"snippet\.sh: (?:line )?2: .*nowhere", done.stderr)


def strip(code: str) -> str:
    stripper = find_language("console").strip
    assert stripper is not None
    return stripper(code.encode()).decode()


def test_transcript_becomes_its_commands_each_in_its_line() -> None:
    assert strip("\n$ ls -l\ntotal 0\n> not ours\n$ cd /\n") == "\nls -l\n\n\ncd /\n"
    assert strip("$ echo a \\\n> b\nab\n$ true") == "echo a \\\nb\n\ntrue"
    assert strip("$ cat <<'END'\n> one\n>\n> $ two\n> END\none\n") == "cat <<'END'\none\n\n$ two\nEND\n\n"
    assert strip("$ cat <<<word\nword\n") == "cat <<<word\n\n"


@pytest.mark.parametrize("script", ["", "ls\n$ ls\n", "echo '$ x'\n", "$HOME/run\n", "#!/bin/sh\ntrue\n"])
def test_script_is_not_taken_for_a_transcript(script: str) -> None:
    assert strip(script) == script


# -------------------------------------------------------------------------------------------------------------- Python

SCRIPTS = {
    "error": "def f():\n    1 / 0\n\nf()\n",
    "chained error": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise ValueError('x') from error\n",
    "syntax error": "x = 1\nif x\n    pass\n",
    "indentation error": "def f():\nreturn 1\n",
    "error inside exec": "exec('raise ValueError(1)')\n",
    "misspelt name": "import mathh\n",
    "exit with a code": "import sys; sys.exit(3)",
    "exit with a text": "raise SystemExit('bye')",
    "exit without": "exit()",
    "interrupt": "raise KeyboardInterrupt",
    "own excepthook": "import sys\nsys.excepthook = lambda kind, error, trace: print('mine', trace.tb_lineno)\n1 / 0\n",
    "clean main": "print(sorted(globals()), __name__, __file__, __spec__, __package__, __loader__.path)",
    "docstring": "'''Text.'''\nprint(__doc__)",
    "arguments": "import sys; print(sys.argv)",
    "stdin": "print(input() + '!'); print(repr(input()))",
    "byte order mark": b"\xef\xbb\xbfprint(ascii('\xc3\xa9'))\n",
    "encoding declared": b"# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\n",
    "line ends of Windows": b"print(1)\r\nprint(2)\r\n",
    "atexit after error": "import atexit\natexit.register(print, 'bye')\nraise RuntimeError('x')\n",
    "thread outlives main": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.1), print('done'))).start()\n1 / 0\n",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A, A.__module__)\n",
    "dataclass": "from __future__ import annotations\nfrom dataclasses import dataclass, KW_ONLY\n"
    "@dataclass\nclass A:\n    x: int\n    _: KW_ONLY\n    y: int = 2\nprint(A(1, y=3))\n",
    "future of its own only": "def f(x: int): ...\nprint(f.__annotations__)\n",
    "source of itself": "import inspect\nclass A:\n    x = 1\nprint(inspect.getsource(A))\n",
    "warning": "import warnings\nwarnings.warn('careful')\n",
    "processes": "import multiprocessing as m\ndef f(x): return 2 * x\nif __name__ == '__main__':\n"
    "    for method in ('fork', 'spawn', 'forkserver'):\n"
    "        with m.get_context(method).Pool(1) as pool: print(pool.map(f, [1, 2]))\n",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_python_snippet_does_what_a_script_does(folder: Path, name: str) -> None:
    ours = run(SCRIPTS[name], "python", folder=folder, args=("a", "--version"), stdin="first\nsecond\n")
    file = folder.with_name("private") / "snippet.py"
    argv = [sys.executable, "-u", str(file), "a", "--version"]
    script = subprocess.run(argv, cwd=folder, input="first\nsecond\n", capture_output=True, text=True, timeout=60)
    assert (ours.returncode, ours.stdout, ours.stderr) == (script.returncode, script.stdout, script.stderr)


def test_python_imports_from_the_working_folder_and_not_from_the_snippets(folder: Path) -> None:
    (folder / "helper.py").write_text("def fail():\n    raise ValueError('helped')\n")
    done = run("import sys\nimport helper\nhelper.fail()\n", "python", folder=folder)
    frames = re.findall(r'File "(.*)", line (\d+)', done.stderr)
    assert frames == [(str(folder.with_name("private") / "snippet.py"), "3"), (str(folder / "helper.py"), "2")]


def test_python_snippet_of_five_megabytes_runs(folder: Path) -> None:
    done = run(f"x = '{'a' * 5_000_000}'\nprint(len(x))\n1 / 0\n", "python", folder=folder)
    assert done.stdout == "5000000\n"
    assert 'snippet.py", line 3' in done.stderr


# ---------------------------------------------------------------------------------------------------------- JavaScript


@pytest.mark.needs_node
def test_javascript_requires_from_the_working_folder(folder: Path) -> None:
    (folder / "x.js").write_text("exports.n = 5\n")
    package = folder / "node_modules" / "pack"
    package.mkdir(parents=True)
    (package / "index.js").write_text("module.exports = 'packed'\n")
    done = run("console.log(require('./x').n, require('pack'), require.main === module)", "javascript", folder=folder)
    assert (done.stdout, done.stderr) == ("5 packed true\n", "")


@pytest.mark.needs_node
def test_javascript_error_names_file_and_line(folder: Path) -> None:
    file = folder.with_name("private") / "snippet.js"
    done = run("#!/usr/bin/node\nfunction f() {\n  throw new Error('boom');\n}\nf();\n", "javascript", folder=folder)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{file}:3\n")
    assert f"at f ({file}:3:9)" in done.stderr
    done = run("const a = 1;\nconst b = ;\n", "javascript", folder=folder)
    assert done.stderr.startswith(f"{file}:2\nconst b = ;\n")


@pytest.mark.needs_node
def test_javascript_sees_what_a_script_sees(folder: Path) -> None:
    code = """
console.log(JSON.stringify(process.argv.slice(2)), process.argv[1] === __filename, this === module.exports);
console.log(["fs", "path", "os", "main", "source", "Module"].map((name) => eval("typeof " + name)).join());
console.log(typeof globalThis.require, typeof crypto, typeof process, require("fs").readFileSync(0, "utf8"));
process.exitCode = 7;
"""
    done = run(code, "javascript", folder=folder, args=("a", "--version"), stdin="typed")
    assert done.stdout.splitlines() == [
        '["a","--version"] true true',
        "undefined,undefined,undefined,undefined,undefined,undefined",
        "undefined object object typed",
    ]
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.needs_node
@pytest.mark.parametrize(
    ("code", "out", "exit_code"),
    [
        ("const fs = require('fs');\nconsole.log(await Promise.resolve(7), typeof fs)", "7 object\n", 0),
        ("await (async () => console.log('called'))()", "called\n", 0),
        ("for await (const x of [1, 2]) console.log(x)", "1\n2\n", 0),
        ("async function f() { await null; console.log('own') }\nf()", "own\n", 0),
        ("await new Promise(() => {})", "", 13),
        ("const await_ = 1; console.log('await')", "await\n", 0),
    ],
)
def test_javascript_may_await_at_the_top(folder: Path, code: str, out: str, exit_code: int) -> None:
    done = run(code, "javascript", folder=folder)
    assert (done.stdout, done.stderr, done.returncode) == (out, "", exit_code)


@pytest.mark.needs_node
def test_javascript_error_after_an_await_keeps_its_line(folder: Path) -> None:
    done = run("await null;\n\nthrow new TypeError('late')", "javascript", folder=folder)
    assert done.returncode == 1
    assert "snippet.js:3:7" in done.stderr


@pytest.mark.needs_node
def test_javascript_module_imports_from_the_working_folder(folder: Path) -> None:
    (folder / "y.mjs").write_text("export const m = 6\n")
    done = run("import { m } from './y.mjs';\nconsole.log(m);\nthrow new Error('end')", "javascript", folder=folder)
    assert done.stdout == "6\n"
    assert "snippet.mjs:3:7" in done.stderr
    done = run("const { m } = await import('./y.mjs'); console.log(m, typeof require)", "javascript", folder=folder)
    assert (done.stdout, done.stderr) == ("6 function\n", "")
