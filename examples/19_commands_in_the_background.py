"""An agent that starts a server, uses it, and types into a program; each conversation in its own sandbox.

The model is a script here; put the name of yours in its place.

Packages: corral[pydantic-ai]
"""

import asyncio
from dataclasses import dataclass

from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from corral import Environment, Variable
from corral.adapters.pydantic_ai import CorralToolset


@dataclass
class Deps:
    greeting: str


FETCH = "python3 -c \"import urllib.request as u; print(u.urlopen('http://localhost:8000').read().decode())\""
script = iter([
    ToolCallPart("execute", {"command": "echo $GREETING > index.html"}),
    ToolCallPart("execute_background", {"command": "python3 -u -m http.server 8000"}),
    ToolCallPart("read_background", {"shell_id": "shell-1", "wait_seconds": 30}),
    ToolCallPart("execute", {"command": FETCH}),
    ToolCallPart("execute_background", {"command": "awk '{ sum += $1 } END { print sum }'"}),
    ToolCallPart("write_background", {"shell_id": "shell-2", "text": "40\n2\n", "close": True}),
    ToolCallPart("read_background", {"shell_id": "shell-2", "wait_seconds": 30}),
    ToolCallPart("kill_background", {"shell_id": "shell-1"}),
    ToolCallPart("list_background", {}),
    TextPart("done"),
])  # fmt: skip
model = FunctionModel(lambda messages, info: ModelResponse(parts=[next(script)]))


async def main() -> None:
    # The variable is looked up in each run's deps.
    async with Environment(env={"GREETING": Variable("greeting")}, per_conversation=True) as environment:
        agent = Agent(model, deps_type=Deps, toolsets=[CorralToolset(environment, include_background=True)])
        result = await agent.run("Show me a web server.", deps=Deps("hello from inside"))
        for message in result.all_messages():
            for part in message.parts:
                if part.part_kind == "tool-return":
                    print(f"{part.tool_name}: {str(part.content).strip()}")


asyncio.run(main())
