"""A model that follows a script, for real agents."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent, ToolReturnPart
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from corral.adapters.pydantic_ai import CorralToolset

Call = tuple[str, dict[str, Any]]


class Script:
    """A model that makes these calls, one each turn, and keeps what it is shown."""

    def __init__(self, *calls: Call) -> None:
        self.calls = calls
        self.shown: list[Any] = []
        self.tools: dict[str, dict[str, Any]] = {}
        self.model = FunctionModel(self._answer)

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.tools = {tool.name: tool.parameters_json_schema for tool in info.function_tools}
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        last = messages[-1]
        assert isinstance(last, ModelRequest)
        self.shown += [
            part.content for part in last.parts if isinstance(part, ToolReturnPart | RetryPromptPart | UserPromptPart)
        ][0 if turn else 1 :]
        if turn < len(self.calls):
            name, arguments = self.calls[turn]
            return ModelResponse(parts=[ToolCallPart(name, arguments)])
        return ModelResponse(parts=[TextPart("done")])


async def run(toolset: CorralToolset[Any], *calls: Call, deps: Any = None, **options: Any) -> list[Any]:
    """What the model is shown after each call."""
    script = Script(*calls)
    result = await Agent(script.model, toolsets=[toolset], deps_type=object).run("go", deps=deps, **options)
    assert result.output == "done"
    return script.shown
