"""The small TypeScript runtime: fetched by the real npm, run by the real Node.js."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from corral.backends.embedded.typescript import setup
from corral.errors import BackendUnavailableError

pytestmark = [pytest.mark.needs_node, pytest.mark.needs_npm]
needs_runtime = pytest.mark.needs_network

# What clients of this field call it with.
CLIENT_FLAGS = (
    "--transpile-only", "--skipProject", "--compilerOptions", '{"module":"commonjs","moduleResolution":"node"}',
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the runtime in it."""
    folder = tmp_path_factory.mktemp("typescript")
    setup.install(folder)
    return folder


class Shim:
    """Runs ts-node in a folder with some files."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.folder = folder
        self._script = runtime / "ts-node.js"

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def run(self, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        argv = ["node", str(self._script), *args]
        return subprocess.run(argv, cwd=self.folder, input=stdin, capture_output=True, text=True, timeout=60)


@pytest.fixture
def shim(tmp_path: Path, data: Path) -> Shim:
    runtime = setup.installed(data)
    assert runtime is not None
    return Shim(tmp_path, runtime)


# ---------------------------------------------------------------------------------------------------------- installing


@needs_runtime
def test_runtime_is_installed_whole_and_readable_by_all(tmp_path: Path) -> None:
    told: list[str] = []
    before = os.umask(0o077)
    try:
        done = setup.install(tmp_path, on_progress=told.append)
    finally:
        os.umask(before)
    assert done.folder == setup.installed(tmp_path) == tmp_path / "runtimes" / "typescript"
    assert done.esbuild_version in told[0]
    assert 5_000_000 < done.size_bytes < 20_000_000
    assert [path.name for path in done.folder.parent.iterdir()] == ["typescript"]
    assert all(path.stat().st_mode & 0o004 for path in done.folder.rglob("*"))


@needs_runtime
def test_runtime_of_another_version_or_damaged_is_not_taken_for_ours(tmp_path: Path) -> None:
    assert setup.installed(tmp_path) is None
    folder = setup.install(tmp_path).folder
    shim = folder / "ts-node.js"
    shim.write_text(shim.read_text() + "// of another day\n")
    assert setup.installed(tmp_path) is None
    setup.install(tmp_path)
    assert setup.installed(tmp_path) == folder
    next(folder.glob("node_modules/@esbuild/*/bin/esbuild")).unlink()
    assert setup.installed(tmp_path) is None


@needs_runtime
def test_runtime_is_removed_without_trace(tmp_path: Path) -> None:
    setup.install(tmp_path)
    assert setup.remove(tmp_path)
    assert not setup.remove(tmp_path)
    assert setup.installed(tmp_path) is None
    assert list((tmp_path / "runtimes").iterdir()) == []


def test_missing_npm_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendUnavailableError, match="npm is not on PATH") as caught:
        setup.install(tmp_path)
    assert "Node.js" in caught.value.hint


def test_failing_npm_leaves_nothing_and_tells_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config_registry", "http://user:secret@127.0.0.1:9/")  # no server listens there
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    with pytest.raises(BackendUnavailableError, match="npm did not fetch esbuild") as caught:
        setup.install(tmp_path)
    assert "secret" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert list((tmp_path / "runtimes").iterdir()) == []


@needs_runtime
def test_package_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = tmp_path / "shipped"
    shutil.copytree(setup._SHIPPED, shipped)
    lock = shipped / "package-lock.json"
    lock.write_text(re.sub(r"sha512-....", "sha512-AAAA", lock.read_text()))
    monkeypatch.setattr(setup, "_SHIPPED", shipped)
    with pytest.raises(BackendUnavailableError, match="npm did not fetch esbuild"):
        setup.install(tmp_path / "data")
    assert setup.installed(tmp_path / "data") is None


def test_data_folder_that_can_not_be_written_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "runtimes").write_text("a file")
    with pytest.raises(BackendUnavailableError, match="data folder") as caught:
        setup.install(tmp_path)
    assert "CORRAL_DATA_DIR" in caught.value.hint


# ------------------------------------------------------------------------------------------------------------- running

PROGRAM = """\
import fs, { readFileSync } from "node:fs";
import * as path from "path";
import type { Shape } from "./types";
import { area, type Kind } from "./sub/area.js";

enum Colour { Red = 1, Green }
namespace Space { export const one = 1; }
class Point { constructor(private readonly x: number, public y = 3) {} get sum(): number { return this.x + this.y; } }
const kind: Kind = "round";
console.log(Colour.Green, Colour[1], Space.one, new Point(1).sum, area({ side: 3 } as Shape), kind);
console.log(fs.readFileSync === readFileSync, path.basename(__filename), require.main === module);
console.log(process.argv.slice(2));
import("./sub/area").then((module) => console.log(module.area({ side: 2 })));
"""
IMPORTED = {
    "types.ts": "export interface Shape { side: number }\n",
    "sub/area.ts": 'import type { Shape } from "../types";\n\nexport type Kind = "round" | "square";\n'
    "export function area(shape: Shape): number {\n  if (shape.side < 0) throw new RangeError('negative');\n"
    "  return shape.side ** 2;\n}\n",
}


@needs_runtime
def test_client_flags_run_a_program_of_several_files(shim: Shim) -> None:
    shim.write({"main.ts": PROGRAM, **IMPORTED})
    done = shim.run(*CLIENT_FLAGS, str(shim.folder / "main.ts"), "a", "--version")
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["2 Red 1 4 9 round", "true main.ts true", "[ 'a', '--version' ]", "4"]


@needs_runtime
def test_stack_trace_names_lines_of_the_typescript(shim: Shim) -> None:
    text = "interface A {\n  x: number;\n}\n\nimport { area } from './sub/area';\nenum B { C }\narea({ side: -1 });\n"
    shim.write({"main.ts": text, **IMPORTED})
    done = shim.run(*CLIENT_FLAGS, "main.ts")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{shim.folder}/sub/area.ts:5\n")
    assert "RangeError: negative" in done.stderr
    assert f"at area ({shim.folder}/sub/area.ts:5:29)" in done.stderr
    assert f"({shim.folder}/main.ts:7:1)" in done.stderr


@needs_runtime
@pytest.mark.parametrize("script", ["main.ts", "main.mts"])
def test_top_level_await_works_with_imports_and_require(shim: Shim, script: str) -> None:
    text = """\
import { area } from "./sub/area";
const fs = require("fs");
type Side = { side: number };
const side: Side = await Promise.resolve({ side: 5 });
console.log(area(side), typeof fs, import.meta.url.endsWith("/main." + process.argv[2]), fs.readdirSync("."));

throw new TypeError("late");
"""
    shim.write({script: text, **IMPORTED})
    done = shim.run(*CLIENT_FLAGS, script, script.partition(".")[2])
    assert done.stdout == f"25 object true [ '{script}', 'sub', 'types.ts' ]\n"
    assert f"{shim.folder}/{script}:7:7" in done.stderr
    assert done.returncode == 1
    assert not list(shim.folder.glob(".ts-node*"))


@needs_runtime
def test_await_that_never_ends_is_not_a_success(shim: Shim) -> None:
    assert shim.run("-e", "await new Promise(() => {})").returncode == 13


@needs_runtime
def test_syntax_error_shows_the_place(shim: Shim) -> None:
    shim.write({"bad.ts": "const a: number = 1;\nlet b: = 3;\n", "main.ts": "import './bad';\n"})
    for script in ("bad.ts", "main.ts"):
        done = shim.run(script)
        assert done.returncode == 1
        assert f"{shim.folder}/bad.ts:2:7" in done.stderr
        assert "let b: = 3;" in done.stderr


@needs_runtime
@pytest.mark.parametrize(
    ("args", "stdin", "out"),
    [
        (("-p", "-e", "(6 as number) * 7"), "", "42\n"),
        (("-pe", "(6 as number) * 7"), "", "42\n"),
        (("-p", "(6 as number) * 7"), "", "42\n"),
        (("-e", "console.log(process.argv.slice(1) as string[])", "a", "-b"), "", "[ 'a', '-b' ]\n"),
        ((), "const x: number = 3; console.log(x)", "3\n"),
        (("-",), "console.log((await Promise.resolve(3)) as number)", "3\n"),
        (("-T", "--files", "--pretty", "-H", "--script-mode", "-C", "typescript", "--", "ok.ts"), "", "ok\n"),
        (("--compiler-options={}", "--cwd=sub", "inner.ts"), "", "inner\n"),
        (("-r", "./ok.ts", "-e", "0"), "", "ok\n"),
        (("--esm", "ok"), "", "ok\n"),
    ],
)
def test_usual_ways_to_call_ts_node(shim: Shim, args: tuple[str, ...], stdin: str, out: str) -> None:
    shim.write({"ok.ts": "console.log('ok' as string)\n", "sub/inner.ts": "console.log('inner' as string)\n"})
    done = shim.run(*args, stdin=stdin)
    assert (done.stdout, done.stderr, done.returncode) == (out, "", 0)


@needs_runtime
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--nope", "x.ts"), "unknown option --nope"),
        (("-Z",), "unknown option -Z"),
        (("--typeCheck", "x.ts"), "unknown option --typeCheck"),
        (("-O", "{", "-e", "1"), "--compilerOptions is not JSON"),
        (("-O",), "option -O needs a value"),
        (("nowhere.ts",), "there is no script nowhere.ts"),
    ],
)
def test_wrong_call_gets_one_clear_line(shim: Shim, args: tuple[str, ...], message: str) -> None:
    done = shim.run(*args)
    assert done.returncode == 1
    assert done.stderr.startswith(f"ts-node: {message}")
    assert done.stderr.count("\n") == 1


@needs_runtime
def test_version_and_help_answer(shim: Shim) -> None:
    assert "esbuild" in shim.run("--version").stdout
    assert "--compilerOptions" in shim.run("-h").stdout


@needs_runtime
def test_compiler_options_and_project_reach_the_compiler(shim: Shim) -> None:
    options = '{"experimentalDecorators": true}'
    decorated = "function log(_: unknown, name: string): void { console.log(name); }\nclass A { @log method() {} }\n"
    project = f'{{ // comments are allowed\n "compilerOptions": {options} }}'
    shim.write({"main.ts": decorated, "other/main.ts": decorated, "other/tsconfig.json": project})
    assert shim.run("-O", options, "main.ts").stdout == "method\n"
    assert shim.run("-P", "other/tsconfig.json", "main.ts").stdout == "method\n"
    assert shim.run("other/main.ts").stdout == "method\n"
    assert shim.run("--skipProject", "other/main.ts").stdout != "method\n"


@needs_runtime
def test_forked_child_reads_typescript_too(shim: Shim) -> None:
    text = """\
import { fork } from "child_process";
if (process.argv[2] === "child") { process.send!({ typed: true as boolean }); process.disconnect(); }
else fork(__filename, ["child"]).on("message", (message: unknown) => console.log(message));
"""
    shim.write({"main.ts": text})
    done = shim.run(*CLIENT_FLAGS, "main.ts")
    assert (done.stdout, done.stderr) == ("{ typed: true }\n", "")


@needs_runtime
def test_program_of_five_megabytes_runs(shim: Shim) -> None:
    shim.write({"main.ts": f"const x: string = '{'a' * 5_000_000}';\nconsole.log(x.length);\n"})
    assert shim.run(*CLIENT_FLAGS, "main.ts").stdout == "5000000\n"
