"""The files of a sandbox: by scripts over the channel, and what is large by the service's own transfers."""

from __future__ import annotations

from corral.backends.daytona.remote import Remote
from corral.backends.daytona.shell import AgentShell
from corral.shellfiles.files import ShellFiles
from corral.shellfiles.primitives import Guard


class DaytonaFiles(ShellFiles):
    """See `corral.protocol.AsyncFiles`."""

    def __init__(self, remote: Remote, shell: AgentShell, *, workdir: str, guard: Guard) -> None:
        super().__init__(shell, workdir=workdir, sandbox_id=remote.id, guard=guard)
        self._remote = remote
