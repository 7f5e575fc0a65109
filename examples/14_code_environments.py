"""What a code tool of AG2 may run on: sandboxes with a value for each tenant, a folder of yours, your own environment.

Packages: corral[ag2]
"""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from ag2 import Agent
from ag2.events import ToolCallEvent
from ag2.testing import TestConfig

from corral.adapters.ag2 import CodeRunResult, CorralEnvironment, LocalEnvironment, SandboxCodeTool, Variable


def call(code: str, language: str = "python") -> ToolCallEvent:
    return ToolCallEvent(name="run_code", arguments=json.dumps({"code": code, "language": language}))


async def ask(tool: SandboxCodeTool, *script: Any, **variables: Any) -> str:
    """A conversation with one question. The model is scripted; replace it with your configuration."""
    agent = Agent("coder", config=TestConfig(*script), tools=[tool], variables=variables)
    return str(await (await agent.ask("Go on.")).content())


async def use_tenants() -> None:
    """One tool, and a sandbox for each tenant: the variable is looked up in the context of every call."""
    async with CorralEnvironment(env={"TENANT": Variable("tenant")}) as environment:
        tool = SandboxCodeTool(environment)
        for tenant in ("north", "south"):
            await ask(tool, call("import os; open('mine', 'w').write(os.environ['TENANT'])"), "done", tenant=tenant)
        async with environment.open({"tenant": "north"}) as sandbox:
            print("the sandbox of north has a file of", (await sandbox.exec(["cat", "mine"])).output)


async def use_folder(folder: Path) -> None:
    """Your folder: copied in, and back at the end. The code sees no other files of this machine."""
    async with LocalEnvironment(folder, cleanup=False) as environment:
        code = "rows = open('data.csv').read().split()[1:]; open('rows', 'w').write(str(len(rows)))"
        await ask(SandboxCodeTool(environment), call(code), "done")


class Calculator:
    """Your own environment: any class with these two methods. You decide where its code runs, and how safely."""

    supported_languages = ("python",)

    async def run(self, code: str, language: str, *, context: Any = None) -> CodeRunResult:
        print("asked for", code)
        if not set(code) <= set("0123456789+ "):
            return CodeRunResult(output="only sums are calculated here", exit_code=1)
        return CodeRunResult(output=str(sum(map(int, code.split("+")))), exit_code=0)


async def use_your_own() -> None:
    """In the same tool as the others."""
    print(await ask(SandboxCodeTool(Calculator()), call("40 + 2"), call("import os"), "It is 42."))


asyncio.run(use_tenants())
with tempfile.TemporaryDirectory() as name:
    data = Path(name, "data.csv")
    data.write_text("a,b\n1,2\n3,4\n")
    asyncio.run(use_folder(data.parent))
    print("rows:", data.with_name("rows").read_text())
asyncio.run(use_your_own())
