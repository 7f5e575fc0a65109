"""Classic code execution: the recorded rules of AG2's executor, on the embedded engine, and what ours adds."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from corral import SandboxClosedError, SandboxGoneError, languages
from corral.adapters.ag2 import (
    CodeBlock,
    DaytonaCodeResult,
    MarkdownCodeExtractor,
    SandboxCodeExecutor,
    SandboxCodeResult,
)
from corral.client.sync import Sandbox
from corral.errors import SandboxNoSpaceError

pytestmark = pytest.mark.needs_userns


@pytest.fixture(scope="module")
def executor() -> Iterator[SandboxCodeExecutor]:
    with SandboxCodeExecutor(timeout=30) as made:
        yield made


def run(executor: SandboxCodeExecutor, *blocks: tuple[str, str]) -> Any:
    return executor.execute_code_blocks([CodeBlock(code=code, language=language) for language, code in blocks])


def test_no_blocks_is_success(executor: SandboxCodeExecutor) -> None:
    result = run(executor)
    assert (result.exit_code, result.output, result.sandbox_id) == (0, "", executor.sandbox_id)


def test_outputs_are_joined_by_newline(executor: SandboxCodeExecutor) -> None:
    result = run(executor, ("python", "print(1)"), ("sh", "echo 2"))
    assert (result.exit_code, result.output) == (0, "1\n\n2\n")
    assert [block.output for block in result.blocks] == ["1\n", "2\n"]


def test_it_stops_at_the_first_failure_and_keeps_what_came_before(executor: SandboxCodeExecutor) -> None:
    result = run(executor, ("bash", "echo one"), ("bash", "echo two; exit 3"), ("bash", "touch /tmp/three"))
    assert result.exit_code == 3
    assert result.output == "one\n\ntwo\n"
    assert [block.exit_code for block in result.blocks] == [0, 3]
    assert not executor.sandbox.files.exists("/tmp/three")


@pytest.mark.parametrize("language", ["py", "PYTHON", " python ", "python3", "Py"])
def test_aliases(executor: SandboxCodeExecutor, language: str) -> None:
    assert run(executor, (language, "print(6 * 7)")).output == "42\n"


def test_unknown_language_names_those_that_there_are(executor: SandboxCodeExecutor) -> None:
    result = run(executor, ("COBOL ", "x"))
    assert result.exit_code == 1
    assert result.output.startswith("Unsupported language: 'COBOL '. Supported languages: python, bash, sh, ")


def test_all_languages_can_be_checked_before_the_first_block_runs() -> None:
    with SandboxCodeExecutor(check_first=True) as executor:
        result = run(executor, ("sh", "touch /tmp/ran"), ("cobol", "x"))
        assert result.exit_code == 1
        assert not executor.sandbox.files.exists("/tmp/ran")


def test_a_timeout_has_124_and_what_was_printed_and_leaves_no_script() -> None:
    with SandboxCodeExecutor(timeout=5) as executor:
        result = run(executor, ("sh", "echo begun; sleep 60"))
        assert result.exit_code == 124
        assert result.output == "begun\nExecution timed out after 5 s"
        assert result.blocks[0].timed_out
        assert [info.name for info in executor.sandbox.files.list("/tmp")] == []


def test_files_stay_and_globals_do_not(executor: SandboxCodeExecutor) -> None:
    assert run(executor, ("python", "x = 1; open('kept.txt', 'w').write('here')")).exit_code == 0
    assert run(executor, ("python", "print(open('kept.txt').read())")).output == "here\n"
    assert "NameError" in run(executor, ("python", "print(x)")).output


def test_results_are_models_that_compare_by_their_fields(executor: SandboxCodeExecutor) -> None:
    result = run(executor, ("sh", "echo 1"))
    fields = {"exit_code": 0, "output": "1\n", "sandbox_id": executor.sandbox_id}
    assert result.model_dump() == fields
    assert result == SandboxCodeResult(**fields)
    for copied in (pickle.loads(pickle.dumps(result)), result.model_copy(), copy.deepcopy(result)):
        assert copied == result
        assert [block.output for block in copied.blocks] == ["1\n"]
    assert list(DaytonaCodeResult.model_fields) == list(fields)  # type: ignore[attr-defined]
    assert CodeBlock(code="x", language="y").model_dump() == {"code": "x", "language": "y"}  # type: ignore[attr-defined]


PLAIN = """
import sys
sys.modules["pydantic"] = sys.modules["autogen"] = None
from corral.adapters.ag2 import CodeBlock, DaytonaCodeResult
result = DaytonaCodeResult(exit_code=0, output="x", sandbox_id="y")
assert result == DaytonaCodeResult(0, "x", "y") and result.blocks == ()
print(repr(CodeBlock(code="a", language="b")), result)
"""


def test_results_without_pydantic_have_the_same_fields() -> None:
    printed = subprocess.run([sys.executable, "-c", PLAIN], capture_output=True, text=True, check=True, timeout=100)
    assert "code='a', language='b'" in printed.stdout
    assert "DaytonaCodeResult(exit_code=0, output='x', sandbox_id='y')" in printed.stdout


def test_a_language_that_nothing_runs_is_told_with_127(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the model's to take another; what came before is kept."""
    monkeypatch.setattr(languages, "_table", dict(languages._table))
    runtime = languages.Runtime("no-such-program", ("no-such-program", "{file}"), "kl")
    languages.register_language(languages.Language("klingon", (), (runtime,), probe="true"))
    with SandboxCodeExecutor() as executor:
        result = run(executor, ("sh", "echo one"), ("klingon", "nuqneH"))
        assert result.exit_code == 127
        assert result.output.startswith("one\n\nnothing in this sandbox runs klingon")


def test_a_full_disk_is_told_and_does_not_end_the_conversation(
    executor: SandboxCodeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Sandbox, *arguments: object, **keywords: object) -> None:
        raise SandboxNoSpaceError("snippet.py: No space left on device")

    monkeypatch.setattr(Sandbox, "run_code", fail)
    result = run(executor, ("sh", "echo one"), ("sh", "echo two"))
    assert result.exit_code == 1
    assert result.output.startswith("Error executing code block: snippet.py: No space left on device")
    assert isinstance(result.blocks[0].error, SandboxNoSpaceError)


def test_languages_and_aliases_may_be_written_in_any_way() -> None:
    with SandboxCodeExecutor(languages=["Py", "sh"], aliases={" Console": "sh"}) as executor:
        assert executor.SUPPORTED_LANGUAGES == ["python", "sh"]
        assert run(executor, ("python3", "print(1)"), ("console", "echo 2")).output == "1\n\n2\n"
        assert (
            run(executor, ("bash", "echo 3")).output == "Unsupported language: 'bash'. Supported languages: python, sh"
        )
    with pytest.raises(ValueError, match="cobol"):
        SandboxCodeExecutor(languages=["cobol"])


def test_restart_is_a_fresh_sandbox() -> None:
    with SandboxCodeExecutor() as executor:
        first = executor.sandbox_id
        run(executor, ("sh", "echo x > kept"))
        executor.restart()
        assert executor.sandbox_id != first
        assert run(executor, ("sh", "ls")).output == ""


def test_after_delete_it_says_what_to_do_and_restart_works() -> None:
    executor = SandboxCodeExecutor()
    executor.delete()
    executor.delete()
    with pytest.raises(SandboxClosedError, match="restart"):
        executor.execute_code_blocks([])
    with executor:
        executor.restart()
        assert run(executor, ("sh", "echo back")).output == "back\n"
    assert executor.sandbox_id is None


def test_a_sandbox_that_is_gone_is_no_output() -> None:
    with SandboxCodeExecutor() as executor:
        executor.sandbox.kill()
        with pytest.raises((SandboxGoneError, SandboxClosedError)):
            run(executor, ("sh", "echo x"))


def test_a_copy_is_the_same(executor: SandboxCodeExecutor) -> None:
    assert copy.deepcopy({"executor": executor})["executor"] is executor


def test_large_snippets_and_environment(executor: SandboxCodeExecutor) -> None:
    code = "x = '" + "a" * 5_000_000 + "'\nprint(len(x))"
    assert run(executor, ("python", code)).output == "5000000\n"


@pytest.mark.parametrize("timeout", [0, -1, False])
def test_bad_timeout(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        SandboxCodeExecutor(timeout=timeout)


@pytest.mark.parametrize(
    ("message", "blocks"),
    [
        (None, []),
        ("```c++\nint x;\n```", [("c++", "int x;")]),
        (
            [{"type": "text", "text": "```sh\nls\n```"}, {"type": "image_url", "image_url": {"url": "x"}}],
            [("sh", "ls")],
        ),
    ],
)
def test_extractor_reads_messages(message: Any, blocks: list[tuple[str, str]]) -> None:
    found = MarkdownCodeExtractor().extract_code_blocks(message)
    assert [(block.language, block.code) for block in found] == blocks


@pytest.mark.parametrize("message", [3, b"x", ["x"], [{"text": "x"}]])
def test_extractor_refuses_what_is_no_message(message: Any) -> None:
    with pytest.raises(TypeError):
        MarkdownCodeExtractor().extract_code_blocks(message)
