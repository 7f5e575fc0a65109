"""A real agent of AG2 with a scripted model, for whichever AG2 is installed."""

import importlib
import json
from typing import Any

from corral.adapters.ag2 import framework

Call = tuple[str, dict[str, Any]]


async def ask(tools: list[Any], *calls: Call, variables: dict[str, Any] | None = None) -> list[str]:
    """Let a model make these calls, one after the other; gives what it was told after each."""
    agent, config = _make(tools, *map(_say, calls), "done")
    await agent.ask("go", variables=variables or {})
    return _told(config)


async def converse(tools: list[Any], first: Call, second: Call) -> list[str]:
    """Ask, and ask the reply: a call in each; gives what the model was told after them."""
    agent, config = _make(tools, _say(first), "done", _say(second), "done again")
    reply = await agent.ask("go")
    await reply.ask("go on")
    return _told(config)


def _say(call: Call) -> Any:
    name, arguments = call
    return framework.get("events", "ToolCallEvent")(name=name, arguments=json.dumps(arguments))


def _make(tools: list[Any], *said: Any) -> tuple[Any, Any]:
    testing = importlib.import_module(f"{framework.root()}.testing")
    config = testing.TrackingConfig(testing.TestConfig(*said))
    return importlib.import_module(framework.root()).Agent("runner", config=config, tools=tools), config


def _told(config: Any) -> list[str]:
    results = [result for call in config.mock.call_args_list for result in getattr(call.args[0], "results", ())]
    return ["".join(part.content for part in result.result.parts) for result in results]
