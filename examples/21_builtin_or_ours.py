"""A model's built-in code execution if it has one, else ours; or always ours, for code on your files.

The models are scripts here; put the names of yours in their place.

Packages: corral[pydantic-ai]
"""

import asyncio
from typing import Any

from pydantic_ai import Agent, CodeExecutionTool, ModelResponse, TextPart, Tool, ToolCallPart
from pydantic_ai.capabilities import NativeOrLocalTool
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.profiles import ModelProfile

from corral import Environment
from corral.tools import CodeTool


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Runs code if it has a tool for that, and reports the result."""
    if not info.function_tools:
        return ModelResponse(parts=[TextPart("I run code on the machines of my maker.")])
    if len(messages) == 1:
        code = {"code": "print(sum(range(1, 101)))", "language": "python"}
        return ModelResponse(parts=[ToolCallPart(info.function_tools[0].name, code)])
    return ModelResponse(parts=[TextPart(f"I ran it in a sandbox: {messages[-1].parts[0].content.splitlines()[0]}")])


with_execution = FunctionModel(answer)
without_execution = FunctionModel(answer, profile=ModelProfile(supported_native_tools=frozenset()))


async def main() -> None:
    async with Environment() as environment:
        ours = CodeTool(environment, languages=["python"])

        async def run_code(**arguments: Any) -> str:
            return await ours.call(arguments)

        tool = Tool.from_schema(run_code, name=ours.name, description=ours.description, json_schema=ours.schema)

        # Either: for a calculation that needs nothing of yours. Which one, the model decides by what it can.
        either = Agent(capabilities=[NativeOrLocalTool(native=CodeExecutionTool(), local=tool)])
        for model in (with_execution, without_execution):
            print((await either.run("What is the sum of 1 to 100?", model=model)).output)

        # Ours: the same on every model, with your files and limits, and nothing leaves this machine.
        always = Agent(tools=[tool])
        print((await always.run("What is the sum of 1 to 100?", model=with_execution)).output)


asyncio.run(main())
