"""Rules for what a Pydantic AI agent may read, write and run: presets, your own, and with a callback for approval.

The model is a script here; put the name of yours in its place.

Packages: corral[pydantic-ai]
"""

from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from corral import Sandbox
from corral.adapters.pydantic_ai import (
    READONLY_RULESET,
    CorralToolset,
    OperationPermissions,
    PermissionChecker,
    PermissionDeniedError,
    PermissionRule,
    PermissionRuleset,
    create_console_toolset,
)


def run(box: Sandbox, toolset: CorralToolset[None], *calls: ToolCallPart) -> None:
    """Let an agent make these calls, and print the results."""
    script = iter([*calls, TextPart("done")])
    model = FunctionModel(lambda messages, info: ModelResponse(parts=[next(script)]))
    result = Agent(model, toolsets=[toolset]).run_sync("Go on.")
    for message in result.all_messages():
        for part in message.parts:
            if part.part_kind == "tool-return":
                print(f"  {part.tool_name}: {part.content}")


def ask(operation: str, target: str, reason: str) -> bool:
    """The approval callback, which could ask a person. This one allows changes of tests only."""
    print(f"  may it {operation} {target}? ({reason})")
    return target.startswith("tests/")


RULES = PermissionRuleset(
    default="allow",
    read=OperationPermissions("allow", [PermissionRule("**/.env", "deny", "Secrets stay here")]),
    write=OperationPermissions("ask", [PermissionRule("/etc/**", "deny")]),
    execute=OperationPermissions("deny", [PermissionRule("ls *", "allow")]),
)

with Sandbox() as box:
    box.files.write(".env", "PASSWORD=hunter2\n")
    box.files.symlink("harmless.txt", ".env")

    print("reading only:")
    run(
        box, create_console_toolset(sandbox=box, permissions=READONLY_RULESET),
        ToolCallPart("ls", {"path": "."}),
        ToolCallPart("read_file", {"path": "harmless.txt"}),  # a link to a file that may not be read
        ToolCallPart("grep", {"pattern": "hunter", "ignore_hidden": False}),
    )  # fmt: skip

    print("your own rules:")
    run(
        box, CorralToolset(box, permissions=RULES, ask_callback=ask),
        ToolCallPart("write_file", {"path": "tests/test_a.py", "content": "assert True\n"}),
        ToolCallPart("write_file", {"path": "setup.py", "content": "import os\n"}),
        ToolCallPart("execute", {"command": "ls tests"}),
        ToolCallPart("execute", {"command": "cat .env"}),
    )  # fmt: skip

# The same rules in your own code.
checker = PermissionChecker(RULES)
print(checker.is_allowed("read", "/project/a.py"), checker.requires_approval("write", "/project/a.py"))
try:
    import asyncio

    asyncio.run(checker.check("read", "/project/.env"))
except PermissionDeniedError as error:
    print(error)
