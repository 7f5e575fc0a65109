"""Finds out whether a daemon supports views, by making one; and fills the volume that they need."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import uuid
from collections.abc import AsyncIterator

import aiohttp
from aiodocker.exceptions import DockerError

from corral.backends.docker.container import make_config
from corral.backends.docker.engine_api import EngineApi, Json, make_entry, make_tar
from corral.backends.docker.enter import (
    ENTER,
    FOLDER,
    READY,
    ROOT,
    Who,
    ask_who,
    enter,
    explain,
    find_version,
    make_key,
    make_mount,
    make_volume_name,
    pack,
    read_enter,
)
from corral.backends.docker.seam import CONFLICT
from corral.backends.docker.settings import Settings
from corral.protocol import SpawnRequest
from corral.spec import Spec

_REPO = "corral-enter"
_NOBODY = Who(65534, 65534, (65534,), "")
_PATIENCE_SECONDS = 60.0
_MAX_ANSWER_BYTES = 4096


class Views:
    """The views of one daemon. For use in the I/O thread."""

    def __init__(self, api: EngineApi, settings: Settings) -> None:
        self._api = api
        self._settings = settings
        self._lock = asyncio.Lock()
        self._is_certain = False
        self._lack: str | None = None

    async def find_lack(self) -> str | None:
        """Why views are unsupported, None if they are supported. Tried once, because it takes a container."""
        async with self._lock:
            if not self._is_certain:
                try:
                    self._lack = await self._try()
                    self._is_certain = True
                except DockerError as error:
                    self._lack = f"the daemon refused: {str(error.message)[:200]}"
                except (aiohttp.ClientError, TimeoutError) as error:
                    self._lack = f"the daemon failed: {type(error).__name__}"
            return self._lack

    async def _try(self) -> str | None:
        if self._settings.isolation == "gvisor":
            return "gVisor has no Landlock, without which a restricted view can be bypassed"
        architecture = str((await self._api.info()).get("Architecture", ""))
        program = read_enter(architecture)
        if program is None:
            return f"there is no `enter` for machines of the kind {architecture!r}"
        image = await self._ensure_image()
        await self._ensure_volume(image, program)
        return await self._make_one(image)

    async def _ensure_image(self) -> str:
        """An empty image, so that the trial does not have to fetch one."""
        name = f"{_REPO}:{find_version()}"
        if await self._api.inspect_image(name) is None:
            content = make_tar((make_entry(FOLDER.strip("/"), mode=0o755, size=None), b""))
            await self._api.import_image(content, name=name)
        return name

    # The volume.

    async def _ensure_volume(self, image: str, program: bytes) -> None:
        """Fill it, once for all clients of the daemon. A container's name, which is unique, is the lock."""
        config: Json = {
            "Image": image, "Entrypoint": [ENTER], "Cmd": ["wait"],
            "HostConfig": {"NetworkMode": "none", "Mounts": [make_mount(writable=True)]},
        }  # fmt: skip
        async with asyncio.timeout(_PATIENCE_SECONDS * 2):
            async with self._take_name(config, make_volume_name()) as container:
                if not await self._api.has_path(container, READY):
                    await self._api.put_archive(container, FOLDER, pack(program))

    @contextlib.asynccontextmanager
    async def _take_name(self, config: Json, name: str) -> AsyncIterator[str]:
        """A container that never runs. One that a killed process left is removed after a minute."""
        loop = asyncio.get_running_loop()
        patience = loop.time() + _PATIENCE_SECONDS
        while True:
            try:
                container = await self._api.create_container(config, name=name)
                break
            except DockerError as error:
                if error.status != CONFLICT and "in use" not in str(error.message):
                    raise
            await asyncio.sleep(0.1)
            if loop.time() > patience:
                await self._api.remove(name)
        try:
            yield container
        finally:
            await asyncio.shield(asyncio.ensure_future(self._api.remove(container)))

    # The trial.

    async def _make_one(self, image: str) -> str | None:
        key = make_key()
        config = make_config(
            Spec(), self._settings, image=image, sandbox_id=str(uuid.uuid4()), disk=False, view_key=key
        )
        config |= {"Entrypoint": [ENTER, "wait"], "User": ROOT, "Labels": {}, "OpenStdin": False, "StdinOnce": False,
                   "AttachStdin": False, "AttachStdout": False}  # fmt: skip
        container = await self._api.create_container(config, name=f"corral-trial-{uuid.uuid4().hex}")
        try:
            await self._api.start_container(container)
            return await self._look(container, key)
        finally:
            await asyncio.shield(asyncio.ensure_future(self._api.remove(container)))

    async def _look(self, container: str, key: str) -> str | None:
        token, inner = secrets.token_hex(8), secrets.token_hex(8)
        request = SpawnRequest(
            argv=ask_who(inner), env={}, cwd="/", user="", timeout=None, stdin=False, output_limit_bytes=1,
            read_only=("/",), hidden=("/proc/sys",),
        )  # fmt: skip
        argv, env = enter(request, _NOBODY, token=token, key=key)
        exec_id = await self._api.create_exec(
            container, argv, env=env, user=ROOT, stdin=False, tty=False, privileged=True
        )
        said = bytearray()
        async with asyncio.timeout(_PATIENCE_SECONDS), self._api.start_exec(exec_id, tty=False) as stream:
            while (message := await stream.read_out()) is not None:
                said += message.data[: _MAX_ANSWER_BYTES - len(said)]
        text = said.decode("utf-8", "replace").strip()
        lines = [line.split(" ") for line in text.splitlines()]
        if [inner, str(_NOBODY.uid)] in [words[:2] for words in lines]:
            return None
        answers = [words[1:] for words in lines if words[0] == token and len(words) == 4]
        return str(explain(answers[0], request, sandbox_id=None)) if answers else f"the daemon said: {text[:200]}"
