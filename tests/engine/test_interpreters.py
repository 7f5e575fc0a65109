"""Programs inside find the host's interpreters and tools, packages without a network, and no path of the host."""

import os
import subprocess
import sys
import venv
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.errors import SpecError
from corral.spec import Spec
from support.wheels import make_wheel

HANG_GUARD_SECONDS = 100


@pytest.fixture(scope="module")
async def backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBackend]:
    backend = EmbeddedBackend(tmp_path_factory.mktemp("data"))
    yield backend
    await backend.aclose()


async def test_python_and_pip_are_there_under_all_their_names(backend: EmbeddedBackend) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    async with await backend.create(Spec()) as box:
        for name in ("python", "python3", f"python{version}"):
            result = await box.exec([name, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], check=True)
            assert result.stdout == f"{version}\n"
        result = await box.exec("pip --version && pip3 --version && python -m pip --version")
        assert result.exit_code == 0, result.output
        assert result.stdout.count(f"(python {version})") == 3


async def test_python_has_its_whole_standard_library(backend: EmbeddedBackend) -> None:
    code = (
        "import asyncio, ctypes, decimal, hashlib, json, multiprocessing, sqlite3, ssl, subprocess, tarfile, venv, zlib"
    )
    async with await backend.create(Spec()) as box:
        await box.run_code(code, check=True)


async def test_python_names_no_path_of_the_host(backend: EmbeddedBackend) -> None:
    code = "import sys, sysconfig; print(sys.executable, sys.prefix, sys.base_prefix, *sys.path)"
    async with await backend.create(Spec()) as box:
        result = await box.run_code(code, check=True)
    for word in result.stdout.split():
        assert word.startswith(("/usr", "/opt/corral", "/home/daytona", "/tmp")), word


async def test_basic_tools_are_there(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()) as box:
        script = "for t in sh bash awk sed grep find tar gzip diff env; do command -v $t >/dev/null || echo $t; done"
        assert (await box.exec(script, check=True)).stdout == ""
        assert (await box.exec("echo 6 7 | awk '{ print $1 * $2 }'", check=True)).stdout == "42\n"
        assert (await box.exec(["bash", "-c", 'a=(1 2); echo "${#a[@]}"'], check=True)).stdout == "2\n"


@pytest.mark.needs_git
async def test_git_works(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()) as box:
        script = (
            "git init -q repo && cd repo && echo x > f && git add f && "
            "git -c user.name=n -c user.email=e@example.com commit -qm first && git log --format=%s"
        )
        result = await box.exec(script)
        assert (result.exit_code, result.stdout) == (0, "first\n"), result.output


@pytest.mark.needs_node
async def test_node_works(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()) as box:
        result = await box.exec(["node", "-e", "console.log(6 * 7)"], timeout=HANG_GUARD_SECONDS)
        assert (result.exit_code, result.stdout) == (0, "42\n"), result.output


async def test_pip_installs_a_local_package_into_the_home_folder(backend: EmbeddedBackend) -> None:
    async with await backend.create(Spec()) as box:
        await box.files.write("pkg/setup.py", b"raise SystemExit('not run')")
        # Without a network: a wheel, put together by hand.
        make = """
import zipfile
with zipfile.ZipFile("hand-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("hand.py", "answer = 42")
    wheel.writestr("hand-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: hand\\nVersion: 1.0\\n")
    wheel.writestr("hand-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr("hand-1.0.dist-info/RECORD", "")
"""
        await box.run_code(make, check=True)
        result = await box.exec("pip install --no-index -q ./hand-1.0-py3-none-any.whl", timeout=HANG_GUARD_SECONDS)
        assert result.exit_code == 0, result.output
        assert (await box.run_code("import hand; print(hand.answer)")).stdout == "42\n"


@pytest.mark.needs_network
async def test_packages_are_there_without_a_network_inside(backend: EmbeddedBackend) -> None:
    before = os.umask(0o077)  # what is fetched for sandboxes can be read there, whatever their maker's habits
    try:
        box = await backend.create(Spec(packages=("iniconfig",)))
    finally:
        os.umask(before)
    async with box:
        result = await box.run_code("import iniconfig; print(iniconfig.__file__)")
        assert result.stdout.startswith("/opt/corral/packages/"), result.output
        assert (await box.exec("touch /opt/corral/packages/x")).exit_code != 0
        assert (
            await box.exec("python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 1)'")
        ).exit_code != 0
    async with await backend.create(Spec()) as box:
        assert "/opt/corral/packages" not in (await box.run_code("import sys; print(sys.path)")).stdout
    kept = sorted((backend.data_folder / "packages").iterdir())
    assert [folder.name == "wheels" for folder in kept] == [False, True]
    async with await backend.create(Spec(packages=("iniconfig",))):
        assert sorted((backend.data_folder / "packages").iterdir()) == kept


@pytest.mark.needs_network
async def test_package_that_is_not_there_is_a_typed_error_and_leaves_nothing(backend: EmbeddedBackend) -> None:
    with pytest.raises(SpecError, match="corral-no-such-package"):
        await backend.create(Spec(packages=("corral-no-such-package-anywhere",)))
    left = [path.name for path in (backend.data_folder / "packages").glob(".new*")]
    assert left == []


@pytest.fixture(scope="module")
def host_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host") / "venv"
    venv.create(folder, with_pip=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "lib" / version / "site-packages" / "from_the_venv.py").write_text("answer = 42\n")
    return folder


async def test_virtual_environment_of_the_host_is_shown_read_only(backend: EmbeddedBackend, host_venv: Path) -> None:
    async with await backend.create(Spec(venv=host_venv)) as box:
        result = await box.run_code("import from_the_venv; print(from_the_venv.answer, from_the_venv.__file__)")
        assert result.stdout.startswith("42 /opt/corral/venv/"), result.output
        assert (await box.exec("echo x > /opt/corral/venv/from_the_venv.py")).exit_code != 0
        assert str(host_venv) not in (await box.exec("cat /proc/self/mountinfo; env")).stdout


async def test_programs_of_packages_run_by_their_names(
    backend: EmbeddedBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip writes the path of the host's Python into them, which is not there inside."""
    tmp_path.chmod(0o755)
    make_wheel(tmp_path, "told", program="tell-version")
    make_wheel(tmp_path, "evil", program="pip")
    (tmp_path / "pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {tmp_path}\n")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    async with await backend.create(Spec(packages=("told", "evil"))) as box:
        for command in ("tell-version", "bash -lc tell-version", "cd / && tell-version"):
            result = await box.exec(command)
            assert (result.exit_code, result.stdout) == (0, "1.0\n"), result.output
        assert "from /" in (await box.exec("pip --version")).stdout  # Corral's own, not what a package calls so
    async with await backend.create(Spec()) as box:
        assert (await box.exec("tell-version")).exit_code == 127


async def test_programs_of_a_virtual_environment_run_by_their_names(backend: EmbeddedBackend, host_venv: Path) -> None:
    programs = host_venv / "bin"
    python = programs / "python"
    for name, text in {
        "tell": f"#!{python}\nimport from_the_venv, sys; print(from_the_venv.answer, *sys.argv[1:])\n",
        "tell-far": f"#!/bin/sh\n'''exec' {python} $0\n' '''\nimport from_the_venv; print(from_the_venv.answer)\n",
        "tell-sh": "#!/bin/sh\necho from a shell\n",
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    async with await backend.create(Spec(venv=host_venv)) as box:
        result = await box.exec("tell one two; tell-far; tell-sh")
        assert result.output == "42 one two\n42\nfrom a shell\n"
        found = await box.exec("python3 -c 'import sys; print(sys.prefix)'; command -v activate")
        assert str(host_venv) not in found.output
        assert found.exit_code != 0


@pytest.mark.parametrize("path", ["/usr", "/not/there"])
async def test_folder_that_is_no_virtual_environment_is_refused(backend: EmbeddedBackend, path: str) -> None:
    with pytest.raises(SpecError, match=path):
        await backend.create(Spec(venv=path))


async def test_corral_in_a_virtual_environment_runs_the_python_below_it(host_venv: Path, tmp_path: Path) -> None:
    """The interpreter of a virtual environment is a link; what is shown inside is the one it leads to."""
    import corral

    script = """
import asyncio, sys
from corral.backends.embedded import EmbeddedBackend
from corral.spec import Spec
async def main():
    backend = EmbeddedBackend(sys.argv[1])
    async with await backend.create(Spec()) as box:
        print((await box.run_code("import sys; print(6 * 7, sys.prefix == sys.base_prefix)")).output)
    await backend.aclose()
asyncio.run(main())
"""
    assert corral.__file__ is not None
    env = os.environ | {"PYTHONPATH": str(Path(corral.__file__).parent.parent)}
    argv = [str(host_venv / "bin/python"), "-c", script, str(tmp_path / "data")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=HANG_GUARD_SECONDS)
    assert done.stdout == "42 True\n\n", done.stderr
