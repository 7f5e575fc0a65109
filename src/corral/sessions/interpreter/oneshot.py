"""Snippets in a new process whose figures are returned as charts, separate from their output."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Unpack

from corral.base.process import ALLOWANCE
from corral.errors import CorralError, SandboxFileError
from corral.inside.bundle import bundle
from corral.languages import FILE, find_language
from corral.protocol import CodeOptions
from corral.results import NOT_FOUND_EXIT_CODE, CodeResult
from corral.sessions.interpreter.chartdata import MAX_CHARTS_BYTES, parse_charts

if TYPE_CHECKING:
    from corral.client.sandbox import AsyncSandbox

CHARTS_PART = "interpreter.charts"
"""The reader of figures, for the driver and for `run_code`."""

# Hooks the import of matplotlib without leaving names or arguments behind; the language table's own text follows. The
# reader of figures is loaded only when the snippet imports matplotlib, which most never do.
_PREPARE = """\
def prepare(main, sys):
    del main["prepare"]
    reader, figures = sys.argv[1:3]
    del sys.argv[1:3]
    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name != "matplotlib" or Finder not in sys.meta_path:
                return None
            sys.meta_path.remove(Finder)
            try:
                with open(reader, encoding="utf-8") as file:
                    text = file.read()
            except OSError:
                return None
            charts = {"__name__": "corral_charts"}
            exec(compile(text, "<string>", "exec"), charts)
            charts["install_to_file"](figures)
            return None
    sys.meta_path.insert(0, Finder)
prepare(globals(), __import__("sys"))
"""


def _argv(charts: str, figures: str, snippet: str) -> list[str]:
    """The language table's argv for a Python snippet, with our text before its own."""
    words = list(find_language("python").runtimes[0].argv)
    text, place = words.index("-c") + 1, words.index(FILE)
    words[text] = _PREPARE + words[text]
    words[place:] = [charts, figures, snippet, *words[place + 1 :]]
    return words


async def run_with_charts(
    box: AsyncSandbox,
    code: str | bytes,
    *,
    args: Sequence[str] = (),
    **options: Unpack[CodeOptions],
) -> CodeResult:
    """Run a Python snippet as `run_code` does; the result has its charts.

    They come in a file, which the snippet could forge: this deceives only its own author.

    Raises:
        InvalidCommandError, WorkdirError: as `exec`.
        BackendUnavailableError: no Python inside.
    """
    options["check"] = False  # the caller checks, after the charts are read
    folder = f"{box.temporary}/.corral-{secrets.token_hex(8)}"
    figures = f"{folder}/charts.jsonl"
    try:
        source = code if isinstance(code, bytes) else code.encode("utf-8", "surrogateescape")
        await asyncio.gather(
            box.files.write(f"{folder}/charts.py", bundle(CHARTS_PART)),
            box.files.write(f"{folder}/snippet.py", source),
        )
        result = await box.exec([*_argv(f"{folder}/charts.py", figures, f"{folder}/snippet.py"), *args], **options)
        if result.exit_code == NOT_FOUND_EXIT_CODE and not (await box.exec("command -v python3", timeout=30)).ok:
            box.primitives.lacks_runtime(find_language("python"), op="interpreter")
        charts = await _read_charts(box, figures)
    finally:
        await asyncio.shield(asyncio.ensure_future(_drop(box, folder)))
    values = {field.name: getattr(result, field.name) for field in fields(result)}
    return CodeResult(**values, language="python", charts=charts)


async def _drop(box: AsyncSandbox, folder: str) -> None:
    with contextlib.suppress(CorralError):
        await box.files.remove(folder, recursive=True, missing_ok=True)


async def _read_charts(box: AsyncSandbox, path: str) -> tuple[dict[str, Any], ...]:
    data, allowance, cut = bytearray(), ALLOWANCE.get(), False
    take = allowance.take if allowance is not None else None
    try:
        async with contextlib.aclosing(box.files.read_stream(path)) as stream:
            async for piece in stream:
                data += piece
                cut = len(data) > MAX_CHARTS_BYTES or (take is not None and not take(len(piece)))
                if cut:
                    break
    except SandboxFileError:
        return ()  # there are no charts, or the snippet has replaced the file
    charts = []
    for chart in parse_charts(bytes(data[:MAX_CHARTS_BYTES]), cut=cut, allowance=take):
        charts.append(chart)
        await asyncio.sleep(0)  # other tasks run between two charts, which are bounded
    return tuple(charts)
