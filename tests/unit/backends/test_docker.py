"""What of the Docker backend needs no daemon."""

import asyncio
import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from corral.backends.docker import insidescripts
from corral.backends.docker.capable import refuse_what_is_missing
from corral.backends.docker.container import Standing, describe_owner, dump_spec, is_orphan, load_spec, make_config
from corral.backends.docker.settings import Settings, find_host, make_settings
from corral.backends.registry import backend_names, get_backend
from corral.command import SpawnRequest
from corral.door import make_spec
from corral.engine.seccomp.docker import docker_profile
from corral.errors import BackendUnavailableError, CapabilityError, InvalidCommandError, SpecError
from corral.spec import Resources, Spec

SETTINGS = Settings(host="unix:///nowhere")


def make_request(**changes: object) -> SpawnRequest:
    values: dict[str, object] = {
        "argv": ("true",), "env": {}, "cwd": "/", "user": "", "timeout": None, "stdin": False, "output_limit_bytes": 1,
    }  # fmt: skip
    return SpawnRequest(**{**values, **changes})  # type: ignore[arg-type]


def test_the_seccomp_profile_is_the_engines() -> None:
    """tools/export-seccomp writes it anew."""
    assert json.loads((files("corral.backends.docker") / "seccomp.json").read_text()) == docker_profile()


def test_it_is_in_the_registry() -> None:
    assert "docker" in backend_names()
    assert get_backend("docker").name == "docker"


def test_the_daemon_is_found(tmp_path: Path) -> None:
    podman = tmp_path / "podman"
    podman.mkdir()
    (podman / "podman.sock").touch()
    assert find_host("/a.sock", {}) == "unix:///a.sock"
    assert find_host("tcp://x:1", {"DOCKER_HOST": "unix:///b"}) == "tcp://x:1"
    assert find_host(None, {"DOCKER_HOST": "unix:///b", "CORRAL_DOCKER_HOST": "/c"}) == "unix:///c"
    assert find_host(None, {"DOCKER_HOST": "unix:///b"}) == "unix:///b"
    if not Path("/var/run/docker.sock").exists():
        assert find_host(None, {"XDG_RUNTIME_DIR": str(tmp_path)}) == f"unix://{tmp_path}/podman/podman.sock"


def test_no_daemon_is_said_with_a_remedy(tmp_path: Path) -> None:
    from corral.backends.docker import DockerBackend

    async def ask() -> None:
        backend = DockerBackend(host=f"{tmp_path}/no.sock")
        try:
            with pytest.raises(BackendUnavailableError, match="CORRAL_DOCKER_HOST"):
                await backend.create(make_spec())
        finally:
            await backend.aclose()

    asyncio.run(ask())


def test_settings_come_from_the_environment_and_wrong_ones_are_refused() -> None:
    made = make_settings(
        host="/x", image=None, memory_bytes=None, isolation="runc", pull=True, env={"CORRAL_DOCKER_IMAGE": "mine:1"}
    )
    assert (made.image, made.memory_bytes) == ("mine:1", 512 * 1024**2)
    with pytest.raises(SpecError, match="gvisor"):
        Settings(host="x", isolation="vm")  # type: ignore[arg-type]


def test_memory_at_the_default_is_the_backends() -> None:
    assert SETTINGS.find_memory(Resources()) == 512 * 1024**2
    assert SETTINGS.find_memory(Resources(memory_bytes="2GiB")) == 2 * 1024**3


@pytest.mark.parametrize(
    "standing",
    [
        Standing("0" * 36),
        Standing("0" * 36, kept=True),
        Standing("0" * 36, kept=True, deadline=1234.5, name="with_under-score.dot"),
    ],
)
def test_a_name_says_what_a_container_is(standing: Standing) -> None:
    assert Standing.parse(f"/{standing}") == standing


def test_names_of_others_say_nothing() -> None:
    for name in ("/web", "/corral_x_o", "/corral-relabel-1"):
        assert Standing.parse(name) is None


def test_a_spec_comes_back_from_its_label() -> None:
    spec = Spec(env={"A": "1"}, workdir="/srv", labels={"k": "v"}, exec_timeout=7, resources=Resources(processes=9))
    assert load_spec(dump_spec(spec)) == spec


def test_an_owner_is_an_orphans_when_its_process_is_gone() -> None:
    assert not is_orphan(describe_owner())
    script = "from corral.backends.docker.container import describe_owner; print(describe_owner())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert is_orphan(done.stdout.strip())
    assert not is_orphan("another machine's/1/1")
    assert not is_orphan("")


def test_the_configuration_is_strict() -> None:
    config = make_config(make_spec(lifetime=5), SETTINGS, image="i", sandbox_id="s", disk=True)
    host = config["HostConfig"]
    assert (host["NetworkMode"], host["CapDrop"], host["AutoRemove"]) == ("none", ["ALL"], True)
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (512 * 1024**2, 512 * 1024**2, 256)
    assert host["SecurityOpt"][0] == "no-new-privileges"
    assert host["SecurityOpt"][1].startswith("seccomp={")
    assert host["StorageOpt"] == {"size": str(3 * 1024**3)}
    assert "Runtime" not in host
    gvisor = Settings(host="x", isolation="gvisor")
    assert make_config(Spec(), gvisor, image="i", sandbox_id="s", disk=False)["HostConfig"]["Runtime"] == "runsc"


def test_what_is_missing_is_refused() -> None:
    wishes: tuple[dict[str, object], ...] = (
        {"packages": ["x"]}, {"venv": "/x"}, {"ephemeral": True}, {"network": "a.org"},
    )  # fmt: skip
    for wish in wishes:
        with pytest.raises(CapabilityError):
            refuse_what_is_missing(make_spec(**wish))  # type: ignore[arg-type]


# The shell texts, run by the shell of this machine.


def launch(*argv: str, cwd: str = "/", stdin: bytes | None = None) -> tuple[list[bytes], int]:
    words = insidescripts.launch(argv, token="mark", cwd=cwd, stdin=stdin is not None, size=None)
    done = subprocess.run([os.fsencode(word) for word in words], input=stdin or b"", capture_output=True, timeout=30)
    return done.stdout.split(b"\n", 1), done.returncode


def test_a_program_says_its_number_and_begins(tmp_path: Path) -> None:
    (head, rest), code = launch("sh", "-c", 'pwd; printf %s "$1"; exit 3', "sh", "a  'b", cwd=str(tmp_path))
    assert head.split()[0] == b"mark"
    assert int(head.split()[1]) > 1
    assert (rest, code) == (f"{tmp_path}\na  'b".encode(), 3)
    assert launch("cat", stdin=b"typed")[0][1] == b"typed"
    assert launch("cat")[0][1] == b""


def test_bytes_that_are_no_text_reach_a_program() -> None:
    odd = "b\udcff\\n\\0101 \n"
    words = insidescripts.launch(("printf", "%s", odd, ""), token="t", cwd="/", stdin=False, size=None)
    assert all("\udcff" not in word for word in words)
    assert launch("printf", "%s", odd, "")[0][1] == os.fsencode(odd)


def test_a_missing_folder_is_told_apart_from_a_failure() -> None:
    assert launch("true", cwd="/proc/self/no-such-folder") == ([b"mark cwd", b""], 125)


def test_variables_that_a_shell_would_drop_go_by_env() -> None:
    argv, env = insidescripts.split_env(make_request(env={"A": "1", "lower.dot": "2", "RAW": "\udcff"}))
    assert argv == ("env", "lower.dot=2", "RAW=\udcff", "true")
    assert env == {"A": "1"}
    with pytest.raises(InvalidCommandError):
        insidescripts.split_env(make_request(argv=("true", *["x" * 100_000] * 30)))
