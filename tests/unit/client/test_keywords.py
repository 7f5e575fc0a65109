"""Unknown keywords, which Python accepts where a method has `**options`, and arguments of other types, are refused."""

from typing import Any, cast

import pytest

from corral import AsyncSandbox
from corral.backends.daytona import detached as on_daytona
from corral.backends.embedded import detached as on_embedded
from corral.backends.memory import MemoryBackend
from corral.errors import InvalidCommandError, UnknownBackendError, UnknownLanguageError


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("exec", ["true"]),
        ("run_code", ["1"]),
        ("start", ["true"]),
        ("start_recorded", ["true"]),
        ("open_session", ["a"]),
        ("open_pty", ["a"]),
        ("resize", []),
    ],
)
async def test_a_sandbox_refuses_unknown_keywords(method: str, args: list[str]) -> None:
    """Also for an operation that the backend does not support: a typing error is reported as one."""
    async with AsyncSandbox(backend=MemoryBackend()) as box:
        with pytest.raises(TypeError, match="unexpected keyword argument 'tiemout'"):
            await getattr(box, method)(*args, tiemout=5, **({"name": "a"} if method == "start_recorded" else {}))


@pytest.mark.parametrize("module", [on_daytona, on_embedded])
@pytest.mark.parametrize("keyword", ["tiemout", "pty"])
async def test_detached_programs_refuse_unknown_keywords(module: Any, keyword: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{keyword}'"):
        await module.start(cast(Any, None), cast(Any, None), "true", **{keyword: 5})


@pytest.mark.parametrize("wrong", [5, None, ["a"]])
async def test_arguments_of_other_types_are_refused_by_name(wrong: Any) -> None:
    with pytest.raises(UnknownBackendError, match="give one of "):
        AsyncSandbox(backend=wrong)
    with pytest.raises(UnknownBackendError, match="give one of "):
        await AsyncSandbox.list(backend=wrong)
    with pytest.raises(TypeError, match="sandbox_id must be a string"):
        await AsyncSandbox.connect(wrong, backend=MemoryBackend())
    async with AsyncSandbox(backend=MemoryBackend()) as box:
        with pytest.raises(InvalidCommandError, match="code must be a string or bytes"):
            await box.run_code(wrong)
        with pytest.raises(UnknownLanguageError):
            await box.run_code("1", wrong)
        with pytest.raises(TypeError, match="a path must be a string"):
            await box.files.read(wrong)


@pytest.mark.parametrize("keyword", ["user", "read_only", "hidden"])
async def test_options_of_other_types_are_refused_by_name(keyword: str) -> None:
    async with AsyncSandbox(backend=MemoryBackend()) as box:
        with pytest.raises(InvalidCommandError, match=f"{keyword} must be a "):
            await box.exec("true", **cast("Any", {keyword: 5}))


async def test_one_path_is_not_a_list_of_paths() -> None:
    """A string is iterable: each of its characters was a path."""
    async with AsyncSandbox(backend=MemoryBackend()) as box:
        with pytest.raises(InvalidCommandError, match="read_only must be a list of paths"):
            await box.exec("true", read_only="/srv")
        for opening in (box.open_session, box.open_pty):
            with pytest.raises(TypeError, match="name must be a string"):
                await opening(cast("Any", 5))
