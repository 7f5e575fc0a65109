"""The tests, tested: with a defence switched off, the probe that it stops goes red.

A defence is switched off in a copy of the sources, by changing one line of it; the product has no switch for that. The
line is looked for exactly, so that a knock-out that no longer fits fails instead of passing by accident.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from corral.testing.hostile import ALL, WINDOW
from support.knock_outs import KNOCK_OUTS, NO_FILTER, NO_NAMESPACE_LIMITS, Edit, KnockOut, Mode
from support.user import ROOT, open_ordinary_user
from support.window_knock_outs import WINDOW_KNOCK_OUTS

EVERY = (*KNOCK_OUTS, *WINDOW_KNOCK_OUTS)

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is Linux only"),
    pytest.mark.timeout(180),  # some mutants make the host wait for what never comes
]


def switch_off(library: Path, edits: Sequence[Edit]) -> None:
    for edit in edits:
        path = library / "corral" / edit.file
        text = path.read_text(encoding="utf-8")
        assert text.count(edit.old) >= edit.times, f"{edit.file} has no longer {edit.old!r}"
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


def test_every_knock_out_fits_the_sources() -> None:
    """Cheap enough for every run: the knock-outs themselves are run by `make prove`."""
    names = {probe.name for probe in (*ALL, *WINDOW)}
    assert {probe.name for probe in WINDOW} <= {name for knock_out in WINDOW_KNOCK_OUTS for name in knock_out.red}
    for knock_out in EVERY:
        assert set(knock_out.red) <= names
        for edit in knock_out.edits:
            text = (ROOT / "src/corral" / edit.file).read_text(encoding="utf-8")
            assert text.count(edit.old) >= edit.times, f"{edit.file} has no longer {edit.old!r}: adapt the knock-out"


def attack_as_root(edits: Sequence[Edit], probes: Sequence[str], folder: Path) -> dict[str, dict[str, str]]:
    library = folder / "library"
    shutil.copytree(ROOT / "src", library, ignore=shutil.ignore_patterns("__pycache__"))
    switch_off(library, edits)
    env = os.environ | {
        "PYTHONPATH": str(library),
        "CORRAL_DATA_DIR": str(folder / "data"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    # Namespaces of the test's own, so that a knocked-out one does not let anything through to the real host.
    argv = [
        "unshare",
        "--ipc",
        "--uts",
        "sh",
        "-c",
        'echo knocked-out-host >/proc/sys/kernel/hostname; exec "$@"',
        "sh",
    ]
    argv += [sys.executable, "-m", "corral.testing.hostile", *probes]
    done = subprocess.run(argv, env=env, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150)
    return read_rows(done)


def attack_as_user(edits: Sequence[Edit], probes: Sequence[str]) -> dict[str, dict[str, str]]:
    with open_ordinary_user() as user:
        switch_off(user.library, edits)
        argv = [str(user.python), "-m", "corral.testing.hostile", *probes]
        return read_rows(user.run_argv(argv, env={"CORRAL_DATA_DIR": str(user.home / "data")}, timeout=150))


def read_rows(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert rows, f"the mutant did not even start: {done.stderr[-2000:]}"
    return {row["name"]: row for row in rows}


def attack(mode: Mode, edits: Sequence[Edit], probes: Sequence[str], folder: Path) -> dict[str, dict[str, str]]:
    return attack_as_root(edits, probes, folder) if mode == "root" else attack_as_user(edits, probes)


MARKS = {"root": [pytest.mark.needs_root], "user": [pytest.mark.needs_user, pytest.mark.needs_userns]}


@pytest.mark.prove
@pytest.mark.parametrize(
    ("knock_out", "mode"),
    [
        pytest.param(knock_out, mode, marks=MARKS[mode], id=f"{knock_out.defence}, {mode}")
        for knock_out in EVERY
        for mode in knock_out.modes
    ],
)
def test_probe_goes_red_without(knock_out: KnockOut, mode: Mode, tmp_path: Path) -> None:
    rows = attack(mode, knock_out.edits, knock_out.red, tmp_path)
    for name in knock_out.red:
        assert rows[name]["verdict"] == "breached", f"{name} did not notice: {rows[name]['evidence']}"
        assert knock_out.says in rows[name]["evidence"]


@pytest.mark.prove
@pytest.mark.parametrize("wall", [NO_FILTER, NO_NAMESPACE_LIMITS], ids=["without the filter", "without the limits"])
@pytest.mark.parametrize("mode", [pytest.param(mode, marks=marks) for mode, marks in MARKS.items()])
def test_one_wall_before_user_namespaces_is_enough(wall: Edit, mode: Mode, tmp_path: Path) -> None:
    rows = attack(mode, (wall,), ["make-a-user-namespace"], tmp_path)
    assert rows["make-a-user-namespace"]["verdict"] == "held", rows


@pytest.mark.prove
@pytest.mark.needs_user
@pytest.mark.needs_userns
def test_whoever_holds_many_watches_of_epoll_is_ended_once_they_are_short(tmp_path: Path) -> None:
    """Millions would be needed for a real shortage: here init believes in one from the beginning."""
    name, short = "use-up-epoll-watches", "return error.errno == errno.ENOSPC\n        return False"
    edit = Edit("engine/counting.py", short, short.replace("False", "True"))
    row = attack("user", (edit,), [name], tmp_path)[name]
    assert (row["verdict"], row["evidence"]) == ("held", "ended by the limit of watches")
