"""Third-party clients, unmodified, against `corral serve`: `make clients`. docs/server.md lists the results.

Each is installed from the registry in a venv or a folder of its own. The scripts assert what the client got.
"""

import re

import pytest

from clients.conftest import RunClient
from support.project import ROOT

pytestmark = [pytest.mark.clients, pytest.mark.needs_network]

SDKS = ("0.226.1", "0.190.0", "0.167.0", "0.150.0", "0.130.0", "0.115.0", "0.108.1", "0.103.0", "0.27.1")
SDK = f"daytona=={SDKS[0]}"  # for those that pin none
# Not with the settings and the conftest.py of this project.
RUNNER = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir=.", "--noconftest")
CLIENTS = {
    "@daytona/sdk": ("0.216.0",),
    "daytona": SDKS,
    "pydantic-ai-backend": ("0.2.37", "0.2.16"),
    "ag2": ("1.2.1", "0.14.0"),
    "langchain-daytona": ("0.0.9",),
    "langchain-daytona-data-analysis": ("0.2.0",),
    "google-adk": ("2.13.0",),
    "openai-agents": ("0.24.0",),
    "agno": ("3.1.10",),
    "pydantic-ai-daytona": ("0.2.0",),
}


def ended(printed: str) -> bool:
    return printed.endswith("came to its end\n")


@pytest.mark.needs_git
@pytest.mark.parametrize("version", SDKS)
def test_python_sdk(run_python: RunClient, version: str) -> None:
    assert ended(run_python("sdk.py", f"daytona=={version}"))


def test_runner_of_three_calls(run_python: RunClient) -> None:
    assert ended(run_python("runner.py", SDK))


def test_pydantic_ai_backend_sandbox(run_python: RunClient) -> None:
    assert ended(run_python("pydantic_sandbox.py", "pydantic-ai-backend==0.2.16", SDK))


def test_pydantic_ai_backend_workspace_passes_the_suite_of_pydantic_ai(run_python: RunClient) -> None:
    """A conformance suite that its authors run only with an account; two rules are tried otherwise, see the script."""
    packages = ("pydantic-ai-backend[daytona,workspaces]==0.2.37", SDK, "pytest==9.0.3", "anyio")
    printed = run_python("pydantic_workspace.py", *packages, runner=RUNNER)
    passed = re.search(r"^(\d+) passed", printed, flags=re.MULTILINE)
    assert passed is not None, printed
    assert int(passed[1]) >= 30, printed


def test_ag2_code_executor(run_python: RunClient) -> None:
    assert ended(run_python("ag2_executor.py", "ag2==0.14.0", SDK))


def test_ag2_environment(run_python: RunClient) -> None:
    assert ended(run_python("ag2_environment.py", "ag2==1.2.1", SDK))


def test_langchain_daytona(run_python: RunClient) -> None:
    assert ended(run_python("langchain.py", "langchain-daytona==0.0.9", SDK))


def test_langchain_daytona_data_analysis(run_python: RunClient) -> None:
    assert ended(run_python("langchain_analysis.py", "langchain-daytona-data-analysis==0.2.0"))


def test_google_adk(run_python: RunClient) -> None:
    assert ended(run_python("google_adk.py", "google-adk==2.13.0", SDK))


def test_openai_agents(run_python: RunClient) -> None:
    assert ended(run_python("openai_agents.py", "openai-agents[daytona]==0.24.0", SDK))


def test_agno(run_python: RunClient) -> None:
    assert ended(run_python("agno_tools.py", "agno==3.1.10", SDK))


def test_pydantic_ai_daytona(run_python: RunClient) -> None:
    assert ended(run_python("pydantic_session.py", "pydantic-ai-daytona==0.2.0"))


def test_page_has_the_clients_that_are_run_here() -> None:
    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    section = page.partition("## Clients that were run against it")[2].partition("\n## ")[0]
    for name, versions in CLIENTS.items():
        (row,) = [line for line in section.splitlines() if line.startswith(f"| `{name}` ")]
        assert re.findall(r"\d+\.\d+\.\d+", row.split("|")[2]) == list(versions)
