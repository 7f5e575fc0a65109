"""A tool loop with a client in OpenAI's style. The client is scripted here; replace it with `OpenAI()`."""

import json
from types import SimpleNamespace
from typing import Any

from corral import Sandbox
from corral.tools import CodeTool, FileTools, Tool


class ScriptedClient:
    """Answers as `client.chat.completions.create` would: a tool call first, then an answer from its result."""

    def __init__(self) -> None:
        self.chat = SimpleNamespace(completions=self)

    def create(self, *, model: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        assert all(tool["type"] == "function" for tool in tools)
        told = [message["content"] for message in messages if message["role"] == "tool"]
        if told:
            return self._answer(content=f"The mean is {told[-1].splitlines()[0]}.")
        code = "import statistics; print(statistics.mean([3, 5, 13]))"
        arguments = json.dumps({"code": code, "language": "python"})
        function = SimpleNamespace(name="run_code", arguments=arguments)
        return self._answer(tool_calls=[SimpleNamespace(id="call_1", type="function", function=function)])

    @staticmethod
    def _answer(*, content: str | None = None, tool_calls: Any = None) -> Any:
        message = SimpleNamespace(role="assistant", content=content, tool_calls=tool_calls)
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])


def ask(client: Any, question: str, tools: dict[str, Tool], *, turns: int = 10) -> str:
    """Let the model use the tools until it answers."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    offered = [{"type": "function", "function": tool.definition()} for tool in tools.values()]
    for _ in range(turns):
        message = client.chat.completions.create(model="any", messages=messages, tools=offered).choices[0].message
        if not message.tool_calls:
            return str(message.content)
        messages.append({"role": "assistant", "content": message.content, "tool_calls": message.tool_calls})
        for call in message.tool_calls:
            # Errors that the model can fix are returned to it. A lost sandbox raises.
            tool = tools.get(call.function.name)
            text = tool.call_sync(call.function.arguments) if tool else f"Error: no tool named {call.function.name!r}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(text)})
    raise RuntimeError(f"no answer after {turns} turns")


with Sandbox(exec_timeout=30) as box:
    own = [CodeTool(box.async_sandbox), *FileTools(box.async_sandbox)]
    print(ask(ScriptedClient(), "What is the mean of 3, 5 and 13?", {tool.name: tool for tool in own}))
