"""The language table: the names of each language, and how a snippet of it is run.

Every snippet is a new process, and its source is in a file: an argument list contains constants and the file's path,
never source code. Nothing here touches a sandbox; `AsyncSandbox.run_code` does, with what it reads from this table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from corral.errors import SpecError, UnknownLanguageError

FILE = "{file}"


@dataclass(frozen=True, slots=True)
class Runtime:
    """One way to run a language. The caller replaces `{file}` with the snippet's path and appends its arguments.

    `name` is the program that must be installed; "program:variant" distinguishes several ways to use one program.
    """

    name: str
    argv: tuple[str, ...]
    extension: str
    beside: bool = False
    """The file must be in the working folder, because imports are looked up from there; else in a private folder."""
    in_place: tuple[str, ...] = ()
    """The same for a file that is run in its place, under its own name; empty: as `argv`."""
    own: tuple[str, ...] = ()
    """Extensions of files that it runs, outside of a project, like a snippet."""

    @property
    def program(self) -> str:
        """The name as a probe prints it."""
        return self.name.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Language:
    """A language: its names, and its runtimes in order of preference."""

    name: str
    aliases: tuple[str, ...]
    runtimes: tuple[Runtime, ...]
    probe: str = ""
    """Script for /bin/sh that prints the installed programs, one per line. Empty: the first runtime is used."""
    hint: str = ""
    """What to do if no runtime is installed."""
    select: Callable[[bytes], tuple[str, ...]] | None = None
    """Returns the names of the runtimes for this source, best first. Its input is hostile: keep it linear."""
    strip: Callable[[bytes], bytes] | None = None
    """Returns the source to run, with all line numbers unchanged."""


# -------------------------------------------------------------------------------------------------------------- Python

# A script's imports are looked up beside the script, which would be the private folder; with -c they are looked up in
# the working folder. The rest makes -c a script again: its own name, __file__ and arguments, a `__main__` with nothing
# of ours in it (so that pickle, dataclasses and multiprocessing find what they look for), and tracebacks without our
# two frames. The hook is put in place on the way out, so that the program's own hook is kept and never sees ours. From
# Python 3.13 on the text of -c is remembered, and would be shown for what the program itself runs by exec().
_PYTHON_BOOT = """\
def boot(main, sys):
    del main["boot"], sys.argv[0]
    path = sys.argv[0]
    loader = sys.modules["_frozen_importlib_external"].SourceFileLoader("__main__", path)
    main.update(__file__=path, __cached__=None, __loader__=loader)
    for cache in ("cache", "_interactive_cache"):
        getattr(sys.modules.get("linecache"), cache, {}).clear()
    try:
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, main)
    except BaseException:
        hook = sys.excepthook
        def report(kind, error, trace):
            while trace and trace.tb_frame.f_code.co_filename == "<string>":
                trace = trace.tb_next
            hook(kind, error.with_traceback(trace), trace)
        sys.excepthook = report
        raise
boot(globals(), __import__("sys"))
"""

# -------------------------------------------------------------------------------------------------------------- shells

_PROMPT = b"$ "
_HERE_DOCUMENT = re.compile(rb"(?<!<)<<-?[ \t]*['\"\\]?(\w+)")


def _strip_prompts(code: bytes) -> bytes:
    """Turn a terminal's transcript into its commands; a script, which never starts with "$ ", is not changed.

    Output of the terminal becomes empty lines. A command continues after a backslash and in a here-document.
    """
    if not code.lstrip().startswith(_PROMPT):
        return code
    lines: list[bytes] = []
    goes_on = False
    end: bytes | None = None  # the word that ends the here-document we are in
    for line in code.split(b"\n"):
        text = line.lstrip()
        if end is None and text.startswith(_PROMPT):
            command = text[len(_PROMPT) :]
        elif end is not None or goes_on:
            command = text[1:].removeprefix(b" ") if text.startswith(b">") else line
        else:
            command = b""
        lines.append(command)
        if end is None:
            goes_on = command.rstrip().endswith(b"\\")
            end = found[1] if (found := _HERE_DOCUMENT.search(command)) else None
        elif command.strip() == end:
            end = None
    return b"\n".join(lines)


# ------------------------------------------------------------------------------------------ JavaScript and TypeScript

# Runs a CommonJS snippet from its private folder as if it were in the working folder, where require() looks.
# -e shows Node's own modules as globals, which a script does not see: they go. A snippet that awaits at the top level,
# not supported by CommonJS, is run as an async function; one line stays one line. 13 is Node's code for an await that
# nothing will ever end. `await (` alone would be the call of a function of that name.
_NODE_BOOT = r"""{
const Module = require("module"), fs = require("fs"), path = require("path"), vm = require("vm");
const file = process.argv[1];
for (const name of [...Module.builtinModules, "module", "exports", "require", "__filename", "__dirname"])
  if (!["console", "crypto", "process"].includes(name)) delete globalThis[name];
const main = new Module(".", null);
main.filename = path.join(process.cwd(), path.basename(file));
main.paths = Module._nodeModulePaths(process.cwd());
process.mainModule = Module._cache[file] = main;
const source = fs.readFileSync(file, "utf8").replace(/^\uFEFF/, "").replace(/^#!.*/, "");
const compiles = (text) => { try { return new vm.Script(Module.wrap(text)); } catch { return null; } };
const wrapped = `return (async () => {${source}\n})()`;
if (/\bawait\b/.test(source) && (/\bawait\s*[([`+\/-]/.test(source) || !compiles(source)) && compiles(wrapped)) {
  let pending = true;
  process.on("exit", (code) => { if (pending && code === 0) process.exitCode = 13; });
  main._compile(wrapped, file).finally(() => { pending = false; });
} else main._compile(source, file);
main.loaded = true;
}"""

# Comments, strings, templates and regular expressions. A closing mark is optional and a repeat possessive or bounded:
# hostile text must not make this quadratic.
_NOT_CODE = re.compile(
    rb"""//[^\n]*+ | /\*.*?(?:\*/|\Z)
    | "(?:[^"\\\n]|\\.)*+"? | '(?:[^'\\\n]|\\.)*+'? | `(?:[^`\\]|\\.)*+`?
    | (?:^|(?<=[=(,:;!&|?{}\[]))[ \t]{0,8}/(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*+\]?)*+/?""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_LOOK_BYTES = 256 * 1024  # no first import is further down, and this runs in the caller's event loop
_MODULE_SYNTAX = re.compile(
    rb"""(?:^|[;}])[ \t]*+(?:import(?:\s+[\w$]|\s*[{*"])|export(?:\s*[{*]|\s+[a-z]))|\bimport\s*\.\s*meta\b""",
    re.MULTILINE | re.VERBOSE,
)
_COMMONJS_NAME = re.compile(rb"\brequire\s*[(.]|\bmodule\.exports\b|\bexports\.|\b__(?:dir|file)name\b")
_DYNAMIC_IMPORT = re.compile(rb"\bimport\s*\(")
# What Node.js does not run by stripping types: code that types stand for, and imports without a file's extension.
_MORE_THAN_TYPES = re.compile(
    rb"""\b(?:enum|namespace|module)\s+[\w$.]{1,200}\s*\{ | \bimport\s+[\w$]{1,200}\s*= | ^[ \t]*+@[\w$]
    | \bconstructor\s*\([^()]{0,500}\b(?:public|private|protected|readonly)\s""",
    re.MULTILINE | re.VERBOSE,
)
_RELATIVE_IMPORT = re.compile(rb"\b(?:from|import)\s*\(?\s*[\"']\.")


def _blank_text(code: bytes) -> bytes:
    """The source's beginning, without what only looks like code: comments become a space, texts become empty ones."""
    return _NOT_CODE.sub(lambda found: b" " if found[0].startswith((b"//", b"/*")) else b'""', code[:_LOOK_BYTES])


def _select_javascript(code: bytes) -> tuple[str, ...]:
    bare = _blank_text(code)
    if _MODULE_SYNTAX.search(bare):
        return "node:module", "bun", "deno"
    node = "node:beside" if _DYNAMIC_IMPORT.search(bare) else "node"
    return node, "bun", "deno:commonjs" if _COMMONJS_NAME.search(bare) else "deno"


def _select_typescript(code: bytes) -> tuple[str, ...]:
    bare = _blank_text(code)
    commonjs = _COMMONJS_NAME.search(bare) and not _MODULE_SYNTAX.search(bare)
    deno, node, tsx = (f"{name}:commonjs" if commonjs else name for name in ("deno", "node", "tsx"))
    if _MORE_THAN_TYPES.search(bare) or _RELATIVE_IMPORT.search(code, 0, _LOOK_BYTES):
        return "bun", deno, tsx, "ts-node", node
    return "bun", deno, node, tsx, "ts-node"


_DENO = ("deno", "run", "--quiet", "--allow-all", "--unstable-sloppy-imports", FILE)
_TS_NODE = ("ts-node", "--transpile-only", "--skipProject", "--compilerOptions",
            '{"module":"commonjs","target":"es2022","esModuleInterop":true}', FILE)  # fmt: skip

_LIST_PROGRAMS = 'list() { for name; do command -v "$name" >/dev/null 2>&1 && echo "$name"; done; }'
_JAVASCRIPT_PROBE = f"""{_LIST_PROGRAMS}
list node bun deno
exit 0
"""
# Node.js strips types without a flag from 22.18 on, and in the 23s from 23.6. Asking for its version does not start V8.
_TYPESCRIPT_PROBE = f"""{_LIST_PROGRAMS}
list bun deno tsx ts-node
version=$(node --version 2>/dev/null) || exit 0
case $version in v23.[0-5].*) exit 0 ;; esac
major=${{version#v}} minor=${{version#*.}}
[ "${{major%%.*}}" -gt 22 ] || {{ [ "${{major%%.*}}" -eq 22 ] && [ "${{minor%%.*}}" -ge 18 ]; }} && echo node
exit 0
"""

# ----------------------------------------------------------------------------------------------------------- the table

_BUILT_IN = (
    Language(
        name="python",
        aliases=("py", "py3", "python3"),
        runtimes=(
            Runtime("python3", ("python3", "-u", "-c", _PYTHON_BOOT, FILE), "py", in_place=("python3", "-u", FILE)),
        ),
        hint="install Python 3.8 or newer inside, as python3",
    ),
    Language(
        name="bash",
        aliases=("shell", "zsh", "console", "terminal", "shell-session", "shellsession", "sh-session", "bash-session",
                 "shellscript", "shell-script"),
        runtimes=(Runtime("bash", ("bash", FILE), "sh"),),
        hint="install bash inside, or run the snippet as sh",
        strip=_strip_prompts,
    ),
    Language(
        name="sh",
        aliases=("posix", "dash", "ash"),
        runtimes=(Runtime("sh", ("sh", FILE), "sh"),),
        hint="install a POSIX shell inside",
        strip=_strip_prompts,
    ),
    Language(
        name="javascript",
        aliases=("js", "node", "nodejs", "node.js", "mjs", "cjs", "ecmascript"),
        runtimes=(
            Runtime("node", ("node", "-e", _NODE_BOOT, FILE), "js", in_place=("node", FILE)),
            Runtime("node:beside", ("node", "-e", _NODE_BOOT, FILE), "cjs", beside=True, in_place=("node", FILE)),
            Runtime("node:module", ("node", FILE), "mjs", beside=True),
            Runtime("bun", ("bun", "run", FILE), "js", beside=True, own=("js", "jsx")),
            Runtime("deno", _DENO, "mjs", beside=True, own=("js", "jsx")),
            Runtime("deno:commonjs", _DENO, "cjs", beside=True),
        ),
        probe=_JAVASCRIPT_PROBE,
        hint="install Node.js, Bun or Deno inside",
        select=_select_javascript,
    ),
    Language(
        name="typescript",
        aliases=("ts", "tsx", "mts", "cts", "ts-node"),
        runtimes=(
            Runtime("bun", ("bun", "run", FILE), "ts", beside=True, own=("ts", "tsx", "mts", "cts")),
            Runtime("deno", _DENO, "mts", beside=True, own=("ts", "tsx", "mts")),
            Runtime("deno:commonjs", _DENO, "cts", beside=True, own=("cts",)),
            Runtime("node", ("node", FILE), "mts", beside=True, own=("ts", "mts")),
            Runtime("node:commonjs", ("node", FILE), "cts", beside=True, own=("ts", "cts")),
            Runtime("tsx", ("tsx", FILE), "mts", beside=True, own=("mts",)),
            Runtime("tsx:commonjs", ("tsx", FILE), "cts", beside=True, own=("ts", "tsx", "cts")),
            Runtime("ts-node", _TS_NODE, "ts", beside=True, own=("ts", "tsx")),
        ),
        probe=_TYPESCRIPT_PROBE,
        hint="install Bun, Deno or Node.js 22.18 or newer inside",
        select=_select_typescript,
    ),
)  # fmt: skip

_table = {name: language for language in _BUILT_IN for name in (language.name, *language.aliases)}


def find_language(name: str) -> Language:
    """The language of that name or alias; case and spaces around it don't matter. Raises: UnknownLanguageError."""
    language = _table.get(_normalise(name)) if isinstance(name, str) else None
    if language is None:
        raise UnknownLanguageError(
            f"unknown language {name!r}",
            hint=f"known languages: {', '.join(language_names())}; register_language adds others",
        )
    return language


def register_language(language: Language, *, replace: bool = False) -> None:
    """Add a language for this process. With `replace`, its names are taken from other languages.

    Raises:
        SpecError: a name that is empty or taken, no runtime, or a runtime that does not use the file.
    """
    names = [_normalise(name) for name in (language.name, *language.aliases)]
    if not all(names):
        raise SpecError(f"language {language.name!r} has an empty name", hint="give a name such as 'ruby'")
    if not language.runtimes:
        raise SpecError(f"language {language.name!r} has no runtime", hint="give at least one Runtime")
    for runtime in language.runtimes:
        if FILE not in runtime.argv:
            raise SpecError(
                f"runtime {runtime.name!r} of language {language.name!r} does not use the snippet",
                hint=f"put {FILE!r} into its argv as an argument of its own",
            )
    taken = [name for name in names if name in _table]
    if taken and not replace:
        raise SpecError(f"the language name {taken[0]!r} is taken", hint="give another, or replace=True")
    for name in [name for name, old in _table.items() if old.name == language.name]:
        del _table[name]
    _table.update(dict.fromkeys(names, language))


def language_names() -> list[str]:
    """The languages' own names, without aliases, in the order in which they were registered."""
    return list(dict.fromkeys(language.name for language in _table.values()))


def choose_runtime(language: Language, code: bytes, probed: Sequence[str] | None) -> Runtime | None:
    """The runtime for this source among the installed ones (`probed`, as printed; None: all), or None."""
    by_name = {runtime.name: runtime for runtime in language.runtimes}
    names = language.select(code) if language.select else tuple(by_name)
    suited = (by_name[name] for name in names if name in by_name)
    return next((runtime for runtime in suited if probed is None or runtime.program in probed), None)


def _normalise(name: str) -> str:
    return str(name).strip().lower()
