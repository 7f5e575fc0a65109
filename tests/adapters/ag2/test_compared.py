"""AG2's own environment and ours against the same service: the same answers, except where ours fixes a defect."""

import inspect
from typing import Any

import pytest

from corral.adapters import ag2
from corral.adapters.ag2 import DaytonaEnvironment, Variable, framework
from support.serving import ServedProcess

pytestmark = pytest.mark.needs_userns

Theirs: Any = framework.get("extensions.daytona", "DaytonaEnvironment")


class Context:
    def __init__(self, **variables: Any) -> None:
        self.variables = variables


CALLS: list[tuple[list[str], dict[str, Any]]] = [
    ([], {}),
    (["echo", "a b", "'", '"', "$HOME", "*"], {}),
    (["sh", "-c", "echo out; echo err >&2; exit 3"], {}),
    (["sh", "-c", "printf 'no newline'"], {}),
    (["sh", "-c", "echo $A"], {}),
    (["true"], {"timeout": 5}),
]

REFUSALS: list[tuple[dict[str, Any], Any]] = [
    ({"snapshot": "a", "image": "b", "timeout": 0}, None),
    ({"timeout": 0}, None),
    ({"api_key": Variable()}, None),
    ({"target": Variable("t"), "image": Variable("i")}, None),
    ({"api_key": Variable("k")}, Context()),
    ({"env_vars": Variable()}, Context()),
    ({"snapshot": Variable("s"), "image": "x"}, Context(s="y")),
    ({"snapshot": "x", "image": Variable()}, Context(image="y")),
]


@pytest.mark.filterwarnings("ignore:`server_url` is deprecated")  # by the SDK itself, in their use of it
async def test_answers(service: ServedProcess) -> None:
    answers = []
    for kind in (Theirs, DaytonaEnvironment):
        async with kind(env_vars={"A": "1"}, timeout=30) as environment, environment.open() as sandbox:
            told = [await sandbox.exec(argv, **keywords) for argv, keywords in CALLS]
            late = await sandbox.exec(["sleep", "60"], timeout=1)
            lost = await sandbox.exec(["no-such-program"])
            async with environment.open() as again:
                same = again is sandbox
        with pytest.raises(RuntimeError) as closed:
            await sandbox.exec(["true"])
        answers.append(
            (told, late.exit_code, late.output[:21], lost.exit_code, same, sandbox.closed, str(closed.value))
        )
    assert answers[0] == answers[1]


@pytest.mark.parametrize("row", range(len(REFUSALS)))
async def test_refusals(row: int, service: ServedProcess) -> None:
    keywords, context = REFUSALS[row]
    told = []
    for kind in (Theirs, DaytonaEnvironment):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is, ours is the same
            async with kind(**keywords).open(context):
                pass
        told.append((type(caught.value), str(caught.value)))
    assert told[0] == told[1]


SIGNATURES = {
    "DaytonaEnvironment": "extensions.daytona",
    "DaytonaResources": "extensions.daytona",
    "LocalEnvironment": "tools.sandbox",
    "LocalSandbox": "tools.sandbox.local",
    "SandboxShellTool": "tools",
}


_BY_NAME = inspect.Parameter.KEYWORD_ONLY
LOCAL = [("git_settings", _BY_NAME, False), ("packages", _BY_NAME, ()), ("venv", _BY_NAME, None),
         ("network", _BY_NAME, None)]  # fmt: skip
ADDED = {"LocalEnvironment": LOCAL, "LocalSandbox": LOCAL}
"""What ours takes beyond theirs, by name only and after all that is theirs."""


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    kinds = (getattr(ag2, name), framework.get(SIGNATURES[name], name))
    found = [inspect.signature(kind).parameters.values() for kind in kinds]
    ours, theirs = ([(one.name, one.kind, one.default) for one in parameters] for parameters in found)
    assert ours == theirs + ADDED.get(name, [])


@pytest.mark.parametrize("rules", [{}, {"readonly": True}, {"blocked": ["rm"]}, {"description": "In {workdir}"}])
async def test_what_a_model_is_offered(rules: dict[str, Any]) -> None:
    environment = DaytonaEnvironment()
    for tool in ("SandboxCodeTool", "SandboxShellTool"):
        keywords = rules if tool == "SandboxShellTool" else {}
        ours, theirs = (kind(environment, **keywords) for kind in (getattr(ag2, tool), framework.get("tools", tool)))
        assert await ours.schemas(None) == await theirs.schemas(None)
