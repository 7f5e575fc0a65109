"""The toolbox as the official SDK sees it: its operations, and one way to call both clients."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import daytona_toolbox_api_client as sync_api
import daytona_toolbox_api_client_async as async_api
from daytona import SessionExecuteRequest

ABSENT_APIS = ("ComputerUseApi", "LspApi")


def list_operations(api: Any) -> dict[str, tuple[str, str, str]]:
    """The generated client's operations: its class, the method and the path of each."""
    found = {}
    for name, kind in inspect.getmembers(api, inspect.isclass):
        for attribute in dir(kind) if name.endswith("Api") else ():
            if operation := re.fullmatch(r"_(\w+)_serialize", attribute):
                text = inspect.getsource(getattr(kind, attribute))
                method, path = re.search(r"method='(\w+)'", text), re.search(r"resource_path='([^']+)'", text)
                assert method is not None
                assert path is not None
                found[operation[1]] = name, method[1], path[1]
    return found


OPERATIONS = list_operations(sync_api)
ABSENT = {name: about for name, about in OPERATIONS.items() if about[0] in ABSENT_APIS}


class Blocking:
    """An object of the async client, whose coroutines are run to their end."""

    def __init__(self, target: Any, run: Callable[[Any], Any]) -> None:
        self._target = target
        self._run = run

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if inspect.ismethod(value) or inspect.isfunction(value):
            return lambda *args, **kwargs: self._settle(value(*args, **kwargs))
        return self._wrap(value)

    def _settle(self, value: Any) -> Any:
        return self._wrap(self._run(value)) if inspect.isawaitable(value) else self._wrap(value)

    def _wrap(self, value: Any) -> Any:
        module = type(value).__module__
        speaks = module.startswith(("daytona._async", "daytona.handle", "daytona_toolbox_api_client_async.api"))
        return Blocking(value, self._run) if speaks else value


class World:
    """A sandbox, by one of the two clients."""

    def __init__(self, box: Any, *, is_async: bool) -> None:
        self.box, self.is_async = box, is_async
        self._count = 0

    def name(self) -> str:
        """A new one."""
        self._count += 1
        return f"n{self._count}"

    def generated(self, kind: str) -> Any:
        """An API of the generated client that the SDK itself never uses."""
        client = self.box.process._api_client.api_client
        if not self.is_async:
            return getattr(sync_api, kind)(client)
        target = client._target if isinstance(client, Blocking) else client
        return Blocking(getattr(async_api, kind)(target), self.box._run)

    def file(self, content: bytes = b"one two\n") -> str:
        """A file with a folder of its own."""
        path = f"{self.name()}/file.txt"
        self.box.fs.upload_file(content, path)
        return path

    def session(self) -> str:
        """A session."""
        name = self.name()
        self.box.process.create_session(name)
        return name

    def command(self, text: str, *, run_async: bool = False) -> tuple[str, Any]:
        """A command in a session of its own."""
        session = self.session()
        return session, self.box.process.execute_session_command(
            session, SessionExecuteRequest(command=text, run_async=run_async)
        )

    def terminal(self) -> tuple[str, Any]:
        """A terminal."""
        name = self.name()
        return name, self.box.process.create_pty_session(name, **self.listening())

    def listening(self) -> dict[str, Any]:
        """What the async client wants beside, to hand output to."""
        return {"on_data": lambda data: None} if self.is_async else {}

    def repository(self) -> str:
        """A repository with one commit."""
        path = self.name()
        self.box.git.init(path, initial_branch="main")
        self.box.fs.upload_file(b"1\n", f"{path}/a.txt")
        self.box.git.add(path, ["a.txt"])
        self.box.git.commit(path, "first", "Ann", "ann@example.com")
        return path

    def remote(self) -> tuple[str, str]:
        """A bare repository, and a clone of it with a commit that it has not got."""
        bare, clone = self.name(), self.name()
        self.box.git.init(bare, bare=True, initial_branch="main")
        self.box.git.clone(f"/home/daytona/{bare}", clone)
        self.box.git.commit(clone, "first", "Ann", "ann@example.com", allow_empty=True)
        return bare, clone


TABLE: dict[str, Callable[[World], object]] = {}


def row(call: Callable[[World], object]) -> Callable[[World], object]:
    """A row of the table, named for its operation."""
    TABLE[call.__name__] = call
    return call
