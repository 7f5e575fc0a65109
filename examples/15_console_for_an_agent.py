"""A Pydantic AI agent with the tools of a console, in a Daytona sandbox: only the import is different.

The model is a script here; put the name of yours in its place. If DAYTONA_API_URL is not set, the service is a
`corral serve` that lives as long as this program.

Packages: corral[pydantic-ai,daytona,server]
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from corral.adapters.pydantic_ai import DaytonaSandbox, create_console_toolset


@dataclass
class Deps:
    backend: DaytonaSandbox


PROGRAM = """\
a, b = 0, 1
for _ in range(10):
    print(a)
    a, b = b, a + b
"""
script = iter([
    ToolCallPart("write_file", {"path": "fib.py", "content": PROGRAM}),
    ToolCallPart("execute", {"command": "python3 fib.py | tail -1"}),
    ToolCallPart("edit_file", {"path": "fib.py", "old_string": "range(10)", "new_string": "range(20)"}),
    ToolCallPart("execute", {"command": "python3 fib.py | tail -1"}),
    TextPart("The tenth is 34, the twentieth 4181."),
])  # fmt: skip
model = FunctionModel(lambda messages, info: ModelResponse(parts=[next(script)]))
agent = Agent(model, deps_type=Deps, toolsets=[create_console_toolset(require_execute_approval=False)])


def main() -> None:
    sandbox = DaytonaSandbox()  # DAYTONA_API_KEY and DAYTONA_API_URL, or api_key= and api_url=
    try:
        result = agent.run_sync("Write fib.py, run it, and tell me two of its numbers.", deps=Deps(sandbox))
        for message in result.all_messages():
            for part in message.parts:
                if part.part_kind == "tool-return":
                    print(f"{part.tool_name}: {str(part.content).strip()}")
        print(result.output)

        # The same sandbox, for your own code.
        sandbox.write("my notes/today.txt", "don't panic\n")
        print(sandbox.grep_raw("don't"))
        print(sandbox.execute("exit 3").exit_code, sandbox.exists("fib.py"), sandbox.read("my notes/today.txt"))
    finally:
        sandbox.stop()


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
