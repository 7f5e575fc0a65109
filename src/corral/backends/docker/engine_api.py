"""The calls to the Docker Engine API that we need, by aiodocker. All run in the loop of the I/O thread."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import aiodocker
import aiohttp
from aiodocker.exceptions import DockerError
from aiodocker.stream import Stream
from yarl import URL

from corral.backends.docker.seam import CONFLICT, NOT_FOUND

_CONNECT_SECONDS = 20.0
_NO_DETACH = ",".join(["ctrl-@"] * 8)
"""The keys that detach from a terminal: a sequence that no program receives by accident."""

_STAT_HEADER = "X-Docker-Container-Path-Stat"
_FOLDER_BIT = 1 << 31
"""In Go's file modes."""

_MAX_COLLECTED_BYTES = 65536
_TAR_END_BYTES = 1024

Json = dict[str, Any]


class Duplex(Stream):
    """A hijacked connection whose input can be ended while its output goes on."""

    async def end_input(self) -> None:
        """Close the input; the output stays open."""
        connection = self._resp.connection if self._resp is not None else None
        transport = connection.transport if connection is not None else None
        if transport is not None and transport.can_write_eof() and not transport.is_closing():
            transport.write_eof()


@contextlib.contextmanager
def _ignoring(*statuses: int) -> Iterator[None]:
    try:
        yield
    except DockerError as error:
        if error.status not in statuses:
            raise


@contextlib.contextmanager
def as_podman_wants(config: Json) -> Iterator[Json]:
    """Podman takes a system call filter as the name of a file, which it reads while it creates the container.

    So podman has to run on this machine. Elsewhere it finds no such file and refuses.
    """
    options = config.get("HostConfig", {}).get("SecurityOpt", [])
    with tempfile.NamedTemporaryFile("w", prefix="corral-seccomp-", suffix=".json") as file:
        changed = []
        for option in options:
            name, _, value = option.partition("=")
            if name == "seccomp":
                file.write(value)
                file.flush()
                value = file.name
            changed.append(f"{name}={value}" if value else name)
        yield {**config, "HostConfig": {**config.get("HostConfig", {}), "SecurityOpt": changed}}


class EngineApi:
    """One connection pool to one daemon."""

    def __init__(self, host: str) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        # Every running program holds a connection, so there is no limit for them here.
        path = host.removeprefix("unix://")
        self._connector = aiohttp.UnixConnector(path=path, limit=0) if path != host else None
        url = "unix://localhost" if self._connector is not None else host  # what aiodocker expects for any socket
        self._docker = aiodocker.Docker(url=url, connector=self._connector, timeout=timeout)
        self._known_info: Json | None = None
        self._is_podman: bool | None = None

    async def close(self) -> None:
        """Close all connections."""
        await self._docker.close()
        if self._connector is not None:
            await self._connector.close()

    async def info(self) -> Json:
        """The daemon's information; requested once."""
        if self._known_info is None:
            self._known_info = dict(await self._docker.system.info())
        return self._known_info

    async def is_podman(self) -> bool:
        """True if the daemon is podman; requested once."""
        if self._is_podman is None:
            told = await self._docker.version()
            self._is_podman = any("podman" in str(part.get("Name")).lower() for part in told.get("Components") or [])
        return self._is_podman

    async def _ask(self, path: str, method: str = "GET", *, params: Json | None = None, body: Any = None) -> Any:
        data = json.dumps(body) if body is not None else None
        headers = {"Content-Type": "application/json"} if body is not None else None
        async with self._docker._query(  # noqa: SLF001 - for calls that aiodocker has no method for
            path, method=method, params=params, data=data, headers=headers
        ) as response:
            text = await response.read()
            return json.loads(text) if text.strip() and "json" in response.content_type else None

    async def _send_tar(self, path: str, method: str, params: Json, data: bytes) -> None:
        headers = {"Content-Type": "application/x-tar"}
        async with self._docker._query(  # noqa: SLF001
            path, method=method, params=params, data=data, headers=headers
        ) as response:
            await response.read()

    # Containers.

    async def create_container(self, config: Json, *, name: str) -> str:
        """Create a container; returns its id."""
        with as_podman_wants(config) if await self.is_podman() else contextlib.nullcontext(config) as wanted:
            container = await self._docker.containers.create(wanted, name=name)
        return str(container.id)

    async def start_container(self, container: str) -> None:
        """Start it."""
        await self._ask(f"containers/{container}/start", "POST")

    async def inspect(self, container: str) -> Json:
        """Everything about one container. Raises: DockerError 404."""
        return dict(await self._ask(f"containers/{container}/json"))

    async def find_containers(self, *labels: str) -> list[Json]:
        """All containers with these labels, in any state."""
        params = {"all": "1", "filters": json.dumps({"label": list(labels)})}
        return list(await self._ask("containers/json", params=params) or [])

    async def rename(self, container: str, name: str) -> None:
        """Give it another name."""
        await self._ask(f"containers/{container}/rename", "POST", params={"name": name})

    async def remove(self, container: str) -> None:
        """End a container and wait until it is removed."""
        try:
            await self._ask(f"containers/{container}", "DELETE", params={"force": "1", "v": "1"})
        except DockerError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise
            if error.status == CONFLICT:  # it is being removed already
                with _ignoring(NOT_FOUND):
                    await self._ask(f"containers/{container}/wait", "POST", params={"condition": "removed"})

    async def pause(self, container: str) -> None:
        """Freeze it. Idempotent."""
        await self._tolerate("paused", f"containers/{container}/pause")

    async def unpause(self, container: str) -> None:
        """Unfreeze it. Idempotent."""
        await self._tolerate("not paused", f"containers/{container}/unpause")

    async def _tolerate(self, word: str, path: str) -> None:
        try:
            await self._ask(path, "POST")
        except DockerError as error:
            if word not in str(error.message):
                raise

    async def update(self, container: str, limits: Json) -> None:
        """Set other limits."""
        await self._ask(f"containers/{container}/update", "POST", body=limits)

    async def stats(self, container: str) -> Json:
        """What it uses now."""
        params = {"stream": "0", "one-shot": "1"}
        return dict(await self._ask(f"containers/{container}/stats", params=params) or {})

    def attach(self, container: str) -> Duplex:
        """Its first process' input and output."""

        async def setup() -> tuple[URL, bytes | None, bool]:
            query = {"stream": "1", "stdin": "1", "stdout": "1", "stderr": "0"}
            return URL(f"containers/{container}/attach").with_query(query), None, False

        return Duplex(self._docker, setup, None)

    async def has_path(self, container: str, path: str) -> bool:
        """True if the path exists, as the daemon sees it."""
        # ValueError: aiodocker looks for the reason in the body, which a response to HEAD does not have.
        with _ignoring(NOT_FOUND), contextlib.suppress(ValueError):
            await self._ask(f"containers/{container}/archive", "HEAD", params={"path": path})
            return True
        return False

    async def is_folder(self, container: str, path: str) -> bool:
        """True if the path is a folder, and not a link to one, as the daemon sees it."""
        async with self._docker._query(  # noqa: SLF001
            f"containers/{container}/archive", method="HEAD", params={"path": path}
        ) as response:
            told = json.loads(base64.b64decode(response.headers[_STAT_HEADER]))
        # Podman gives a target for everything: that of a folder is its own path.
        return bool(int(told["mode"]) & _FOLDER_BIT) and told.get("linkTarget") in (None, "", path)

    async def put_archive(self, container: str, path: str, data: bytes) -> None:
        """Unpack a tar in a container, with the daemon's privileges."""
        await self._send_tar(f"containers/{container}/archive", "PUT", {"path": path}, data)

    # Programs.

    async def create_exec(
        self, container: str, argv: Sequence[str], *, env: Mapping[str, str], user: str, stdin: bool, tty: bool,
        privileged: bool = False,
    ) -> str:  # fmt: skip
        """Prepare a program; returns its exec id. `privileged` is for `enter` alone."""
        body: Json = {
            "Cmd": list(argv), "Env": [f"{name}={value}" for name, value in env.items()], "AttachStdin": stdin,
            "AttachStdout": True, "AttachStderr": True, "Tty": tty, "User": user, "Privileged": privileged,
        }  # fmt: skip
        if tty:
            body["DetachKeys"] = _NO_DETACH
        answer = await self._ask(f"containers/{container}/exec", "POST", body=body)
        return str(answer["Id"])

    def start_exec(self, exec_id: str, *, tty: bool) -> Duplex:
        """Its output and input. It is started when this is first read."""

        async def setup() -> tuple[URL, bytes | None, bool]:
            body = json.dumps({"Detach": False, "Tty": tty}).encode()
            return URL(f"exec/{exec_id}/start"), body, tty

        return Duplex(self._docker, setup, None)

    async def find_exit_code(self, exec_id: str) -> int | None:
        """Its exit code; None while it runs. Raises: DockerError 404."""
        told = await self._ask(f"exec/{exec_id}/json")
        return None if told["Running"] or told["ExitCode"] is None else int(told["ExitCode"])

    async def resize_exec(self, exec_id: str, *, rows: int, columns: int) -> None:
        """Set its terminal's size."""
        await self._ask(f"exec/{exec_id}/resize", "POST", params={"h": str(rows), "w": str(columns)})

    async def collect(self, container: str, argv: Sequence[str], *, user: str) -> tuple[str, bytes]:
        """Run a short program of ours; returns its exec id and the start of its output."""
        exec_id = await self.create_exec(container, argv, env={}, user=user, stdin=False, tty=False)
        output = bytearray()
        async with self.start_exec(exec_id, tty=False) as stream:
            while (message := await stream.read_out()) is not None:
                if message.stream == 1 and len(output) < _MAX_COLLECTED_BYTES:
                    output += message.data
        return exec_id, bytes(output)

    async def run_script(self, container: str, script: str, *args: str, user: str) -> tuple[int, bytes]:
        """Run a shell script of ours; returns its exit code and the start of its output."""
        exec_id, output = await self.collect(container, ["/bin/sh", "-c", script, "sh", *args], user=user)
        for _ in range(200):
            if (code := await self.find_exit_code(exec_id)) is not None:
                return code, output
            await asyncio.sleep(0.01)
        return 1, output

    # Images.

    async def inspect_image(self, name: str) -> Json | None:
        """About one image, None if the daemon does not have it."""
        with _ignoring(NOT_FOUND):
            return dict(await self._docker.images.inspect(name))
        return None

    async def pull(self, name: str) -> AsyncIterator[Json]:
        """Fetch an image; yields progress."""
        async for event in self._docker.images.pull(name, stream=True):
            yield dict(event)

    async def import_image(self, data: bytes, *, name: str) -> None:
        """Create an image from a tar. Name and tag go together: podman ignores a separate tag."""
        await self._send_tar("images/create", "POST", {"fromSrc": "-", "repo": name}, data)

    async def build(self, context: bytes, *, tag: str, labels: Mapping[str, str]) -> AsyncIterator[Json]:
        """Build an image from a tar with a Dockerfile; yields progress."""
        async for event in self._docker.images.build(
            fileobj=io.BytesIO(context), encoding="identity", tag=tag, labels=dict(labels), stream=True, forcerm=True
        ):
            yield dict(event)

    async def commit(self, container: str, *, repo: str, tag: str, labels: Mapping[str, str]) -> None:
        """Create an image of a container's files. The container is paused meanwhile."""
        params = {"container": container, "repo": repo, "tag": tag, "pause": "1"}
        await self._ask("commit", "POST", params=params, body={"Labels": dict(labels)})

    async def find_images(self, *labels: str) -> list[Json]:
        """All images with these labels."""
        params = {"filters": json.dumps({"label": list(labels)})}
        return list(await self._ask("images/json", params=params) or [])

    async def tag_image(self, name: str, *, repo: str, tag: str) -> None:
        """Give an image a second name."""
        await self._ask(f"images/{name}/tag", "POST", params={"repo": repo, "tag": tag})

    async def remove_image(self, name: str) -> None:
        """Remove an image's name, and its layers if they are unused; nothing if it does not exist or is in use."""
        with _ignoring(NOT_FOUND, CONFLICT):
            await self._ask(f"images/{name}", "DELETE", params={"force": "0"})


# Small tars, made in memory, for the daemon to unpack.


def make_entry(name: str, *, mode: int, size: int | None, uid: int = 0, gid: int = 0) -> tarfile.TarInfo:
    """The entry of a file of that size; without a size, of a folder."""
    info = tarfile.TarInfo(name)
    info.mode, info.uid, info.gid, info.mtime = mode, uid, gid, int(time.time())
    if size is None:
        info.type = tarfile.DIRTYPE
    else:
        info.size = size
    return info


def make_tar(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """A tar without padding: podman stops at the end of the entries, and fails if there is more."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
        end = tar.offset + _TAR_END_BYTES
    return sink.getvalue()[:end]
