"""A real agent of AG2 with a scripted model, for whichever AG2 is installed."""

import importlib
import json
from typing import Any

from corral.adapters.ag2 import framework


async def ask(
    tools: list[Any], *calls: tuple[str, dict[str, Any]], variables: dict[str, Any] | None = None
) -> list[str]:
    """Let a model make these calls, one after the other; gives what it was told after each."""
    testing = importlib.import_module(f"{framework.root()}.testing")
    event = framework.get("events", "ToolCallEvent")
    said = [event(name=name, arguments=json.dumps(arguments)) for name, arguments in calls]
    config = testing.TrackingConfig(testing.TestConfig(*said, "done"))
    agent = importlib.import_module(framework.root()).Agent("runner", config=config, tools=tools)
    await agent.ask("go", variables=variables or {})
    results = [result for call in config.mock.call_args_list for result in getattr(call.args[0], "results", ())]
    return ["".join(part.content for part in result.result.parts) for result in results]
