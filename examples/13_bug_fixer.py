"""Two classic AG2 agents: one fixes a program, the other runs the proposed fix, until it works.

The agent that fixes is a script here; give it an `llm_config` instead. The code runs on a Daytona service: if
DAYTONA_API_URL is not set, on a `corral serve` that lives as long as this program.

Packages: corral[daytona,server] ag2==0.14.0
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autogen import ConversableAgent

from corral.adapters.ag2 import DaytonaCodeExecutor

BROKEN = """```python
def mean(numbers):
    return sum(numbers) / len(number)

assert mean([1, 2, 3]) == 2
print("it works")
```"""


def propose(recipient: ConversableAgent, messages: list[dict[str, Any]], sender: Any, config: Any) -> tuple[bool, str]:
    """The scripted model: it reads the output of the code, as a model would."""
    said = messages[-1]["content"]
    if "execution succeeded" in said:
        return True, "TERMINATE"
    if "NameError" in said:
        return True, "A name is misspelt.\n" + BROKEN.replace("len(number)", "len(numbers)")
    return True, "Let us see what it does.\n" + BROKEN


def main() -> None:
    with DaytonaCodeExecutor(timeout=60) as executor:
        runner = ConversableAgent(
            "code_executor",
            llm_config=False,
            code_execution_config={"executor": executor},
            human_input_mode="NEVER",
            is_termination_msg=lambda message: "TERMINATE" in (message.get("content") or ""),
        )
        fixer = ConversableAgent("bug_fixer", llm_config=False, human_input_mode="NEVER", code_execution_config=False)
        fixer.register_reply([ConversableAgent, None], propose, position=0)
        chat = runner.initiate_chat(fixer, message="Mend this program:\n" + BROKEN, max_turns=4, silent=True)
        for message in chat.chat_history[1:]:
            print(f"{message.get('name', message['role'])}: {message['content'].splitlines()[0]}")


@contextmanager
def own_service() -> Iterator[None]:
    """A server on a free port."""
    with tempfile.TemporaryDirectory() as folder:
        key = "a-key-of-this-example"
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "corral", "serve", "--port", "0", "--data-dir", folder],
            stdout=subprocess.PIPE, text=True, env=os.environ | {"CORRAL_API_KEY": key},
        )  # fmt: skip
        try:
            assert server.stdout is not None
            url = next(line.split()[-1] for line in server.stdout if line.startswith("listening on "))
            os.environ |= {"DAYTONA_API_URL": url, "DAYTONA_API_KEY": key}
            yield
        finally:
            server.terminate()
            server.wait()
            if server.stdout is not None:
                server.stdout.close()


if __name__ == "__main__":
    if "DAYTONA_API_URL" in os.environ:
        main()
    else:
        with own_service():
            main()
