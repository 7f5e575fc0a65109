"""Rules for paths, kept for commands too: what may not be read is hidden from them by the kernel, call by call.

Looked through is the working folder. What a rule denies there, or says to ask for, is not there for the command,
whoever in it looks: a shell, an editor, or a program that the model has written.
"""

from __future__ import annotations

from corral.adapters.pydantic_ai.permissions import Gate
from corral.adapters.pydantic_ai.results import ExecuteResponse
from corral.adapters.pydantic_ai.sandbox import AsyncCorralSandbox
from corral.errors import InvalidCommandError, PolicyError, SandboxFileError
from corral.results import FileInfo
from corral.tools.concealment import complete, find_unreadable
from corral.tools.permission import Permissions, real_path
from corral.tools.reading import limit_search
from corral.tools.view import View

_ATTEMPTS = 3
_LOOKED_AT = 100_000


async def execute_hidden(
    sandbox: AsyncCorralSandbox, gate: Gate, command: str, timeout: float | None
) -> ExecuteResponse:
    """Run a command that does not see what the rules deny.

    Raises:
        CapabilityError: the backend has no views.
        PolicyError: there is more to hide, or to look through, than can be.
    """
    assert gate.permissions is not None
    for attempt in range(_ATTEMPTS):
        view = await make_view(sandbox, gate.permissions)
        response = await sandbox.execute(command, timeout, read_only=view.read_only, hidden=view.hidden)
        # A path of the view has vanished between looking and running; nothing was run then.
        vanished = isinstance(response.error, InvalidCommandError) and "view path" in str(response.error)
        if not vanished or attempt == _ATTEMPTS - 1:
            return response
    raise AssertionError("the loop ends by itself")


async def make_view(sandbox: AsyncCorralSandbox, permissions: Permissions) -> View:
    """What the next command may see. Raises: PolicyError."""
    box = await sandbox.get_box()
    root = await sandbox.real_path(".")
    permissions = permissions.within(sandbox.normal("."), root)
    async with limit_search():
        found = await box.files.glob("**", path=root, hidden=True, limit=_LOOKED_AT)
    if found.truncated:
        raise PolicyError(f"{root} holds more than {_LOOKED_AT} files, too many to keep rules for commands")
    hidden: dict[str, FileInfo | None] = dict.fromkeys(find_unreadable(found))
    if root in hidden:
        raise PolicyError(f"{root} can't be looked into, so no rule can be kept for commands there")
    for info in found.files:
        if not _is_hidden(permissions, info):
            continue
        meant = info
        if info.kind == "link":
            try:
                meant = await box.files.stat(await real_path(box.files, info.path, workdir=root))
            except SandboxFileError:
                continue  # it leads nowhere
            if not meant.path.startswith(f"{root.rstrip('/')}/"):
                continue  # a link to the root, which anybody can make, must not hide everything
        hidden[meant.path] = meant
    kept = await complete(box.files, hidden, workdir=root)
    return View(("/",) if permissions.never("write") and permissions.never("edit") else (), kept)


def _is_hidden(permissions: Permissions, info: FileInfo) -> bool:
    decision = permissions.decide("read", info.path)
    if decision.rule is not None:
        return decision.action != "allow"
    # A folder that only the default denies may hold what a rule allows.
    return decision.action == "deny" and not info.is_folder
