"""What of the Docker backend needs no daemon."""

import asyncio
import hashlib
import json
import os
import platform
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from seccomp_profile import docker_profile

from corral.backends.docker import enter, insidescripts
from corral.backends.docker.capable import refuse_what_is_missing
from corral.backends.docker.container import ContainerName, describe_owner, dump_spec, is_orphan, load_spec, make_config
from corral.backends.docker.settings import Settings, find_host
from corral.client.registry import backend_names, get_backend
from corral.errors import (
    BackendUnavailableError,
    CapabilityError,
    ExecError,
    InvalidCommandError,
    SpecError,
    WorkdirError,
)
from corral.protocol import SpawnRequest
from corral.spec import NetworkLimits, NetworkPolicy, Resources, Spec, make_spec

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


def test_an_address_that_is_set_later_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    from corral.backends.docker import DockerBackend

    before = get_backend("docker")
    assert get_backend("docker") is before
    monkeypatch.setenv("CORRAL_DOCKER_HOST", "/run/another.sock")
    after = get_backend("docker")
    assert isinstance(after, DockerBackend)
    assert after.settings.host == "unix:///run/another.sock"


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
            with pytest.raises(BackendUnavailableError, match=r"No such file.*CORRAL_DOCKER_HOST"):
                await backend.create(make_spec())
        finally:
            await backend.aclose()

    asyncio.run(ask())
    with pytest.raises(BackendUnavailableError, match="is not the URL of a Docker daemon"):
        DockerBackend(host="localhost:2375")


def test_settings_come_from_the_environment_and_wrong_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from corral.backends.docker import DockerBackend

    monkeypatch.setenv("CORRAL_DOCKER_IMAGE", "mine:1")
    made = DockerBackend(host="/x").settings
    assert (made.image, made.memory_bytes) == ("mine:1", 512 * 1024**2)
    with pytest.raises(SpecError, match="gvisor"):
        Settings(host="x", isolation="vm")  # type: ignore[arg-type]


def test_memory_at_the_default_is_the_backends() -> None:
    assert SETTINGS.find_memory(Resources()) == 512 * 1024**2
    assert SETTINGS.find_memory(Resources(memory_bytes="2GiB")) == 2 * 1024**3


@pytest.mark.parametrize(
    "standing",
    [
        ContainerName("0" * 36),
        ContainerName("0" * 36, kept=True),
        ContainerName("0" * 36, kept=True, deadline=1234.5, name="with_under-score.dot"),
    ],
)
def test_a_name_says_what_a_container_is(standing: ContainerName) -> None:
    assert ContainerName.parse(f"/{standing}") == standing


def test_names_of_others_say_nothing() -> None:
    for name in ("/web", "/corral_x_o", "/corral-relabel-1"):
        assert ContainerName.parse(name) is None


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
    nothing = make_config(make_spec(network=[]), Settings(host="x"), image="i", sandbox_id="s", disk=False)
    assert nothing["HostConfig"]["NetworkMode"] == "none"
    gvisor = Settings(host="x", isolation="gvisor")
    assert make_config(Spec(), gvisor, image="i", sandbox_id="s", disk=False)["HostConfig"]["Runtime"] == "runsc"


def test_what_is_missing_is_refused() -> None:
    cases: tuple[dict[str, object], ...] = (
        {"packages": ["x"]}, {"venv": "/x"}, {"ephemeral": True}, {"network": "a.org"},
        {"network": "packages"}, {"network": "open,10.0.0.7"},
        {"network": NetworkPolicy("open", limits=NetworkLimits(total_bytes=1))},
    )  # fmt: skip
    for options in cases:
        with pytest.raises(CapabilityError):
            refuse_what_is_missing(make_spec(**options))  # type: ignore[arg-type]


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
    assert launch("true", cwd="/proc/self/no-such-folder") == ([b"mark cwd 0 0", b""], 125)


def test_variables_that_a_shell_would_drop_are_told_apart() -> None:
    odd, env = insidescripts.part_env(make_request(env={"A": "1", "lower.dot": "2", "RAW": "\udcff"}))
    assert odd == ("lower.dot=2", "RAW=\udcff")
    assert env == {"A": "1"}
    with pytest.raises(InvalidCommandError):
        insidescripts.part_env(make_request(argv=("true", *["x" * 100_000] * 30)))


# Views.

KEY = "0123456789abcdef"
ME = enter.Who(1000, 1001, (1001, 7), "/home/me")


def test_enter_was_built_of_its_source() -> None:
    """tools/build-enter builds it anew."""
    folder = files("corral.backends.docker")
    sums = dict(reversed(line.split()) for line in (folder / "enter.sums").read_text().splitlines())
    assert sorted(sums) == ["enter-aarch64", "enter-x86_64", "enter.c"]
    for name, known in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == known, name


def test_the_filter_differs_for_the_key_in_four_calls_only() -> None:
    guarded = {"mount_setattr", "move_mount", "open_tree", "unshare"}
    plain, opened = docker_profile(), enter.open_to_key(docker_profile(), KEY)
    *rest, allow, refuse = opened["syscalls"]
    assert set(allow["names"]) == set(refuse["names"]) == guarded
    (allowed,), (refused,) = allow["args"], refuse["args"]
    assert (allow["action"], allowed["op"]) == ("SCMP_ACT_ALLOW", "SCMP_CMP_EQ")
    assert (refuse["action"], refuse["errnoRet"], refused["op"]) == ("SCMP_ACT_ERRNO", 1, "SCMP_CMP_NE")
    assert allowed["value"] == refused["value"] == int(KEY, 16)
    assert allowed["index"] == refused["index"] == 5
    without = [
        {**rule, "names": names}
        for rule in plain["syscalls"]
        if (names := [name for name in rule["names"] if name not in guarded])
    ]
    assert rest == without
    assert {**opened, "syscalls": []} == {**plain, "syscalls": []}


def test_a_container_with_a_key_can_not_write_what_enter_is_in() -> None:
    config = make_config(Spec(), SETTINGS, image="i", sandbox_id="s", disk=False, view_key=KEY)
    (mount,) = config["HostConfig"]["Mounts"]
    assert (mount["Type"], mount["Target"], mount["ReadOnly"]) == ("volume", "/.corral", True)
    assert str(int(KEY, 16)) in config["HostConfig"]["SecurityOpt"][1]
    assert config["HostConfig"]["CapDrop"] == ["ALL"]
    assert "Mounts" not in make_config(Spec(), SETTINGS, image="i", sandbox_id="s", disk=False)["HostConfig"]


def test_enter_is_told_words_and_bytes() -> None:
    request = make_request(
        argv=("p", "a\\b", "\udcff"), env={"A": "1", "R": "\udcfe"}, cwd="/w", read_only=("/r",), hidden=("/h", "/i")
    )
    argv, env = enter.enter(request, ME, token="t", key=KEY)
    assert argv == (
        "/.corral/enter", "view", "t", "1000", "1001", "1001,7", "-n", "24", "80",
        "/w", "1", "2", "1", "/r", "/h", "/i", "R=\\376", "p", "a\\134b", "\\377",
    )  # fmt: skip
    assert env == {"HOME": "/home/me", "A": "1", "CORRAL_VIEW_KEY": KEY}
    assert enter.enter(make_request(env={"HOME": "/x"}, pty=True), ME, token="t", key=KEY)[0][6] == "-t"
    with pytest.raises(InvalidCommandError):
        enter.enter(make_request(hidden=tuple(["/" + "x" * 4000] * 600)), ME, token="t", key=KEY)


def test_what_enter_answers_is_understood() -> None:
    request = make_request(read_only=("/r",), hidden=("/h", "/i"))

    def told(*words: str) -> Exception:
        return enter.explain(words, request, sandbox_id="s")

    assert isinstance(told("cwd", "2", "0"), WorkdirError)
    assert "view path '/i': No such file" in str(told("hidden", "2", "1"))
    assert isinstance(told("read_only", "13", "0"), InvalidCommandError)
    assert isinstance(told("landlock", "38", "0"), CapabilityError)
    assert isinstance(told("unshare", "1", "0"), ExecError)
    assert enter.parse_who(b"t 1000 1001 1001,7, /home/a b\n", "t") == enter.Who(1000, 1001, (1001, 7), "/home/a b")
    assert enter.parse_who(b"t 1000 1001  \n", "t") == enter.Who(1000, 1001, (), "")
    for odd in (b"", b"x 1 1 1, /\n", b"t 1\n", b"t a b c d\n", b"t 1 1 x, /\n", b"OCI runtime exec failed: t\n"):
        assert enter.parse_who(odd, "t") is None


@pytest.mark.skipif(enter.read_enter(platform.machine()) is None, reason="enter is not built for this machine")
def test_enter_runs_and_does_nothing_without_a_key(tmp_path: Path) -> None:
    program = tmp_path / "enter"
    program.write_bytes(enter.read_enter(platform.machine()) or b"")
    program.chmod(0o755)

    def run(*words: str, **env: str) -> tuple[bytes, int]:
        done = subprocess.run([str(program), *words], capture_output=True, timeout=30, env=env)
        return done.stdout, done.returncode

    said, code = run("whoami", "tok", HOME="/some where")
    who = enter.parse_who(said, "tok")
    assert code == 0
    assert who is not None
    assert (who.uid, who.gid, who.home) == (os.getuid(), os.getgid(), "/some where")
    assert set(who.groups) == set(os.getgroups())
    nothing: list[tuple[str, ...]] = [
        (), ("view",), ("other",), ("whoami",), ("view", "t", "0", "0", "0", "n", "0", "0", "/", "0", "0", "0", "id"),
        ("view", "t", "0", "0", "0", "n", "0", "0", "/", "9", "9", "9", "id"),
        ("view", "t", "0", "0", "0", "n", "0", "0", "/", "18446744073709551615", "1", "0", "id"),
    ]  # fmt: skip
    for words in nothing:
        assert run(*words) == (b"", 125), words


def test_there_is_an_enter_for_the_usual_machines() -> None:
    assert enter.read_enter("x86_64") == enter.read_enter("amd64")
    assert enter.read_enter("aarch64") == enter.read_enter("arm64")
    assert enter.read_enter("riscv64") is None
