"""Flags, then variables, then config.toml; and the documented table is the real one."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from corral.backends.memory import MemoryBackend
from corral.cli.config import SETTINGS, read_config
from corral.cli.root import root
from corral.client import registry
from corral.errors import SpecError
from corral.spec import Resources, Spec
from support.project import ROOT

Corral = Callable[..., Any]


class Recording(MemoryBackend):
    """Remembers the requested options."""

    def __init__(self) -> None:
        super().__init__()
        self.specs: list[Spec] = []

    async def create(self, spec: Spec, **rest: Any) -> Any:
        self.specs.append(spec)
        return await super().create(spec, **rest)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    backend = Recording()
    monkeypatch.setitem(registry._opened, "memory", backend)
    return backend


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config" / "corral" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


def test_flag_beats_variable_beats_file_beats_default(
    corral: Corral, recording: Recording, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ("run", "--backend", "memory", "-l", "sh", "-c", "true")
    assert corral(*run).code == 0
    assert recording.specs[-1].resources == Resources()
    config_file.write_text('memory = "100MiB"\ncpus = 1\ndisk = 1073741824\n')
    assert corral(*run).code == 0
    assert recording.specs[-1].resources == Resources(memory_bytes=100 << 20, cpus=1, disk_bytes=1 << 30)
    monkeypatch.setenv("CORRAL_MEMORY", "200MiB")
    assert corral(*run).code == 0
    assert recording.specs[-1].resources.memory == 200 << 20
    assert corral(*run, "--memory", "300MiB").code == 0
    assert recording.specs[-1].resources == Resources(memory_bytes=300 << 20, cpus=1, disk_bytes=1 << 30)


def test_backend_and_timeout_come_from_the_file(corral: Corral, recording: Recording, config_file: Path) -> None:
    config_file.write_text('backend = "memory"\ntimeout = "50ms"\n')
    ended = corral("run", "-l", "sh", "-c", "sleep 5")
    assert recording.specs
    assert ended.code == 124
    assert "timed out after 50.0 ms" in ended.stderr


def test_settings_reach_commands_inside_groups(corral: Corral, recording: Recording, config_file: Path) -> None:
    config_file.write_text('backend = "memory"\nlifetime = "2h"\n')
    assert corral("sandbox", "create").code == 0
    assert recording.specs[-1].lifetime.seconds == 7200


def test_data_folder_comes_from_the_file(corral: Corral, config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from corral.backends.embedded.settings import default_data_folder

    monkeypatch.setenv("CORRAL_DATA_DIR", "")
    config_file.write_text(f'backend = "memory"\ndata_dir = "{config_file.parent}/elsewhere"\n')
    assert corral("sandbox", "list").code == 0
    assert default_data_folder() == config_file.parent / "elsewhere"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("memroy = 1", "'memroy'"),
        ("timeout = true", "timeout = True"),
        ("backend = 3", "backend = 3"),
        ("timeout = [1]", "timeout = [1]"),
        ("not toml", "not TOML"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_it(corral: Corral, config_file: Path, text: str, named: str) -> None:
    config_file.write_text(text)
    ended = corral("sandbox", "list", "--backend", "memory")
    assert ended.code == 2
    assert named in ended.stderr
    assert "hint: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_wrong_value_is_an_error_that_names_the_flag(corral: Corral, config_file: Path) -> None:
    config_file.write_text('timeout = "soon"')
    ended = corral("run", "--backend", "memory", "-c", "true", "-l", "sh")
    assert ended.code == 2
    assert "--timeout" in ended.stderr
    assert "'soon'" in ended.stderr


def test_network_may_be_given_in_parts_everywhere(
    corral: Corral, recording: Recording, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def policy(*flags: str) -> str:
        ended = corral("run", "--backend", "memory", "-l", "sh", "-c", "true", *flags)
        assert ended.code == 0, ended.stderr
        return str(recording.specs[-1].network)

    assert policy() == "none"
    config_file.write_text('network = "packages,a.org"')
    assert policy() == "packages,a.org"
    config_file.write_text('network = ["packages", "b.org,c.org"]')
    assert policy() == "packages,b.org,c.org"
    monkeypatch.setenv("CORRAL_NETWORK", "packages, d.org")
    assert policy() == "packages,d.org"
    assert policy("--network", "e.org", "--network", "*.f.org:443,10.0.0.0/8") == "e.org,*.f.org:443,10.0.0.0/8"
    config_file.write_text("network = 5")
    assert corral("run", "--backend", "memory", "-c", "true").code == 2


def test_a_file_that_was_named_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_config() == {}
    monkeypatch.setenv("CORRAL_CONFIG", str(tmp_path / "nowhere.toml"))
    with pytest.raises(SpecError, match="does not exist"):
        read_config()


def test_the_documented_table_is_the_real_one() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(--[\w-]+)` \| `(CORRAL_\w+)` \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert rows == [(s.key, s.flag, s.variable, s.default, s.meaning) for s in SETTINGS.values()]


def test_every_setting_is_an_option_of_some_command_and_reads_its_variable() -> None:
    found: dict[str, set[Any]] = {}

    def walk(command: click.Command, context: click.Context) -> None:
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                for flag in parameter.opts:
                    found.setdefault(flag, set()).add(parameter.envvar)
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                walk(child, context)

    walk(root, click.Context(root))
    for setting in SETTINGS.values():
        # `corral serve --network` is what others may reach: no variable for one's own sandboxes sets it.
        theirs = {None} if setting.key == "network" else set()
        assert found.get(setting.flag) == {setting.variable} | theirs, setting.key
