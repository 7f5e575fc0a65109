"""AG2 before 1.0: DaytonaCodeExecutor."""

from autogen.coding import CodeBlock
from autogen.coding.daytona_code_executor import DaytonaCodeExecutor

with DaytonaCodeExecutor(timeout=10, env_vars={"GIVEN": "value"}) as executor:
    answer = executor.execute_code_blocks(
        [
            CodeBlock(language="python", code="import os; print(os.environ['GIVEN'])"),
            CodeBlock(language="bash", code="for i in 1 2; do echo $i; done; echo kept > /tmp/kept"),
        ]
    )
    assert (answer.exit_code, answer.output) == (0, "value\n\n1\n2\n"), answer
    answer = executor.execute_code_blocks([CodeBlock(language="python", code="raise SystemExit(4)")])
    assert answer.exit_code == 4, answer
    answer = executor.execute_code_blocks([CodeBlock(language="sh", code="ls /tmp/ag2_*; cat /tmp/kept")])
    assert (answer.exit_code, answer.output.splitlines()[-1]) == (0, "kept"), answer
    first = answer.sandbox_id
    executor.restart()
    answer = executor.execute_code_blocks([CodeBlock(language="sh", code="cat /tmp/kept")])
    assert answer.exit_code == 1, answer
    assert answer.sandbox_id != first, answer
print("came to its end")
