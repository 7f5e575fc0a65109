"""The messages of AG2's classes: each environment's results read like those of AG2's class of that name."""

from __future__ import annotations

from dataclasses import dataclass, replace

from corral.errors import CorralError, RateLimitedError
from corral.results import NOT_FOUND_EXIT_CODE, ExecResult

_OWN_REMARK = "corral: "
"""The prefix of the embedded engine's message for a program that could not be started."""


@dataclass(frozen=True, slots=True)
class Words:
    """The texts of one of AG2's classes. The defaults are for environments without such a class."""

    sandbox: str = "The sandbox"
    """The name of AG2's class, in the error for a closed sandbox."""
    late: str = "Command timed out after {seconds:g}s"
    failure: str | None = None
    """The output for a failure, with exit code 1; if None, the failure is raised."""
    rate_limited: str | None = None
    strips: bool = False
    """Whether white space around the output is removed."""
    service: str = ""
    resolvable: str = "Variables are only resolvable when SandboxCodeTool is invoked through an Agent."

    def printed(self, result: ExecResult) -> str:
        """The output of a program, as AG2's class returns it."""
        output = result.output.strip() if self.strips else result.output
        if self is LOCAL and result.exit_code == NOT_FOUND_EXIT_CODE and output.startswith(_OWN_REMARK):
            return f"Command not found: {output.removeprefix(_OWN_REMARK).removesuffix(': command not found')}"
        return output

    def failed(self, error: CorralError) -> str | None:
        """The output for a failure, with exit code 1; None if the failure is to be raised."""
        template = (isinstance(error, RateLimitedError) and self.rate_limited) or self.failure
        return template.format(error=error) if template else None


PLAIN = Words()
LOCAL = Words("LocalSandbox", strips=True)
DAYTONA = Words(
    "DaytonaSandbox",
    late="Execution timed out: no end after {seconds:g} seconds",
    failure="Daytona error: {error}",
    rate_limited="Daytona rate limit exceeded: {error}",
    service="Daytona",
)
DOCKER_CODE = Words(
    "DockerCodeEnvironment",
    late="Execution timed out after {seconds:g}s",
    failure="Docker API error: {error}",
    service="Docker",
)
DOCKER = replace(
    DOCKER_CODE,
    sandbox="DockerSandbox",
    strips=True,
    resolvable="Variables are only resolvable when the sandbox is driven from an Agent "
    "(SandboxCodeTool / SandboxShellTool wrappers forward the active Context).",
)
