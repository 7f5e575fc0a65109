"""The shell of this machine, for `ShellFiles`."""

from dataclasses import replace

from corral.base.shellfiles.files import Spawn
from corral.protocol import SpawnRequest
from support.toy_backend import ToyProcess


def local_shell(*shell: str, programs: str = "") -> Spawn:
    """Runs scripts here, with a shell of choice; programs of that folder come before the usual ones."""

    async def spawn(request: SpawnRequest) -> ToyProcess:
        argv = (*(shell or request.argv[:1]), *request.argv[1:])
        env = {**request.env, "PATH": f"{programs}:/usr/bin:/bin".lstrip(":")}
        return ToyProcess(replace(request, argv=argv, env=env), sandbox_id="local")

    return spawn
