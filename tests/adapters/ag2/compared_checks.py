"""Run in an environment that has ag2 0.14, by `test_older_ag2.py`: its classic executor and ours, side by side.

The service is the one that DAYTONA_API_URL names.
"""

import inspect
from typing import Any

import pytest
from autogen import coding as theirs  # type: ignore[import-not-found]
from autogen.coding import CodeBlock

from corral.adapters import ag2 as ours

BOTH = (theirs, ours)

BLOCKS: list[list[tuple[str, str]]] = [
    [],
    [("python", "print(1)"), ("sh", "echo 2")],
    [("py", "import os; print(os.environ['FOO'], os.getcwd())"), ("shell", "echo $FOO; pwd; echo err >&2")],
    [("bash", "echo one"), ("bash", "echo two; exit 3"), ("bash", "touch three")],
    [("sh", "ls")],
    [("sh", "echo a"), ("COBOL ", "x")],
    [("", "x")],
    [("python3", "x")],
    [("node", "x")],
    [("python", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")],
    [("python", "import os; os.kill(os.getpid(), 9)")],
    [("python", "x = '" + "a" * 1_000_000 + "'; print(len(x))")],
    [("bash", "")],
    [("python", "")],
    [("sh", "printf 'no newline'"), ("sh", "printf 2")],
    [("sh", "cat")],
]

REFUSALS: list[dict[str, Any]] = [
    {"timeout": 0, "snapshot": "a", "image": "b"},
    {"snapshot": "a", "image": "b"},
    {"timeout": 0.5},
]

FAILURES: list[dict[str, Any]] = [{"snapshot": "nowhere"}, {"image": "python:3.12-slim"}, {"api_key": "wrong"}]


def answers(module: Any, blocks: list[tuple[str, str]], **keywords: Any) -> tuple[Any, ...]:
    with module.DaytonaCodeExecutor(timeout=30, env_vars={"FOO": "b är"}, **keywords) as executor:
        result = executor.execute_code_blocks([CodeBlock(code=code, language=language) for language, code in blocks])
        assert isinstance(result, theirs.CodeResult)
        assert result.sandbox_id
        return type(result).__name__, result.exit_code, result.output


@pytest.mark.parametrize("row", range(len(BLOCKS)))
def test_answers(row: int) -> None:
    first, second = (answers(module, BLOCKS[row]) for module in BOTH)
    assert first == second


@pytest.mark.parametrize("row", range(len(REFUSALS)))
def test_refusals(row: int) -> None:
    told = []
    for module in BOTH:
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the texts are compared
            module.DaytonaCodeExecutor(**REFUSALS[row])
        told.append(str(caught.value))
    assert told[0] == told[1]


@pytest.mark.parametrize("row", range(len(FAILURES)))
def test_failures_begin_alike(row: int) -> None:
    for module in BOTH:
        with pytest.raises(RuntimeError, match=r"^Failed to create Daytona sandbox: "):
            module.DaytonaCodeExecutor(**FAILURES[row])


def test_signatures() -> None:
    found = [inspect.signature(module.DaytonaCodeExecutor.__init__).parameters for module in BOTH]
    first, second = ([(name, one.kind, one.default) for name, one in each.items()] for each in found)
    assert first == second
    assert theirs.DaytonaCodeExecutor.SUPPORTED_LANGUAGES == ours.DaytonaCodeExecutor.SUPPORTED_LANGUAGES
    assert theirs.DaytonaSandboxResources().__dict__ == ours.DaytonaSandboxResources().__dict__
    assert list(theirs.DaytonaCodeResult.model_fields) == list(ours.DaytonaCodeResult.model_fields)


def test_a_life() -> None:
    for module in BOTH:
        executor = module.DaytonaCodeExecutor(name="compared", timeout=30)
        block = [CodeBlock(code="touch kept; ls", language="sh")]
        first = executor.execute_code_blocks(block).sandbox_id
        executor.restart()
        again = executor.execute_code_blocks([CodeBlock(code="ls", language="sh")])
        assert (again.output, again.sandbox_id != first) == ("", True)
        executor.delete()
        executor.delete()
        executor.restart()
        assert executor.execute_code_blocks(block).output == "kept\n"
        executor.delete()
