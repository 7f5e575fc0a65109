"""How AG2's classes say what happened: each environment's results read like those of AG2's class of its name."""

from __future__ import annotations

from typing import Protocol

from corral.errors import CorralError, RateLimitedError
from corral.results import NOT_FOUND_EXIT_CODE, ExecResult

_OWN_REMARK = "corral: "
"""How the embedded engine begins what it says in the place of a program that could not be started."""


class Words(Protocol):
    """What an environment says in AG2's results, in its own words."""

    sandbox: str
    """The name of AG2's class of its sandboxes."""

    def printed(self, result: ExecResult) -> str:
        """What a program has printed, as AG2's class gives it."""

    def timed_out(self, seconds: float) -> str:
        """Instead of output, when the time was up."""

    def failed(self, error: CorralError) -> str | None:
        """What a failure reads like as a result with exit code 1; None lets it pass as an error."""


class PlainWords:
    """For environments that have no service of their own to speak about."""

    sandbox = "The sandbox"

    def printed(self, result: ExecResult) -> str:
        """See `Words`."""
        return result.output

    def timed_out(self, seconds: float) -> str:
        """See `Words`."""
        return f"Command timed out after {seconds:g}s"

    def failed(self, error: CorralError) -> str | None:
        """See `Words`."""
        return None


class LocalWords(PlainWords):
    """As AG2's `LocalSandbox` says it, which strips what was printed."""

    sandbox = "LocalSandbox"

    def printed(self, result: ExecResult) -> str:
        """See `Words`."""
        output = result.output.strip()
        if result.exit_code == NOT_FOUND_EXIT_CODE and output.startswith(_OWN_REMARK):
            return f"Command not found: {output.removeprefix(_OWN_REMARK).removesuffix(': command not found')}"
        return output


class ServiceWords(PlainWords):
    """For those whose parameters may be variables."""

    service = ""
    resolvable = "Variables are only resolvable when SandboxCodeTool is invoked through an Agent."


class DaytonaWords(ServiceWords):
    """As AG2's `DaytonaSandbox` and `DaytonaCodeEnvironment` say it."""

    sandbox = "DaytonaSandbox"
    service = "Daytona"

    def timed_out(self, seconds: float) -> str:
        """See `Words`."""
        return f"Execution timed out: no end after {seconds:g} seconds"

    def failed(self, error: CorralError) -> str | None:
        """See `Words`."""
        if isinstance(error, RateLimitedError):
            return f"Daytona rate limit exceeded: {error}"
        return f"Daytona error: {error}"


class DockerCodeWords(ServiceWords):
    """As AG2's `DockerCodeEnvironment` says it."""

    sandbox = "DockerCodeEnvironment"
    service = "Docker"

    def timed_out(self, seconds: float) -> str:
        """See `Words`."""
        return f"Execution timed out after {seconds:g}s"

    def failed(self, error: CorralError) -> str | None:
        """See `Words`."""
        return f"Docker API error: {error}"


class DockerWords(DockerCodeWords):
    """As AG2's `DockerSandbox` says it, which strips what was printed."""

    sandbox = "DockerSandbox"
    resolvable = (
        "Variables are only resolvable when the sandbox is driven from an Agent "
        "(SandboxCodeTool / SandboxShellTool wrappers forward the active Context)."
    )

    def printed(self, result: ExecResult) -> str:
        """See `Words`."""
        return result.output.strip()
