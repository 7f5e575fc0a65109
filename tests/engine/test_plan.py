"""What will be done to the kernel, compared line by line with what was agreed on. No kernel is touched here."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from corral.engine.plan import (
    BUILD_CAPABILITIES,
    Overlay,
    SetCapabilities,
    plan_child,
    plan_program,
    plan_sandbox,
    render,
)
from corral.engine.recipe import CODE_GID, CODE_UID, Bound, Identity, Layer, Limits, Overlaid, Recipe

GOLDEN = Path(__file__).parent / "golden"
UPDATE = "CORRAL_UPDATE_GOLDEN"

LIMITS = Limits(memory_bytes=2**30, processes=256, cpus=2.0, disk_bytes=3 * 2**30, inodes=200_000)
ROOT = Identity(rootless=False, outer_uid=0x7000_0000, outer_gid=0x7000_0000)
ROOTLESS = Identity(rootless=True, outer_uid=12345, outer_gid=12345)
OWNED = (Overlaid("/", ("/data/base/0123",), writable=True), Overlaid("/usr", ("/usr",), writable=True))
SHARED = (Overlaid("/", ("/data/base/4567",), writable=True), Overlaid("/usr", ("/usr",)))
TOOLS = (
    Overlaid("/opt/corral/python", ("/opt/python",)),
    Overlaid("/opt/corral/packages", ("/data/packages/89ab", "/usr")),
)
RECIPE = Recipe(sandbox_id="0f", folder="/data/sandboxes/0f", trees=OWNED, limits=LIMITS)
LAYERS = (
    Layer("b", "/data/layers/b", "loop", 0x7001_0000, {"/": 0, "/usr": 1}),
    Layer("a", "/data/layers/a", "folder", 0x7002_0000, {"/": 1}),
)
OVERLAID = Overlaid("/work", ("/srv/project",), writable=True, outside=True)
MOUNTS = (
    Bound("/data", "f0e1", volume=True, writable=True),
    Bound("/in", "f0e1", volume=True, subpath="raw/2026", exclusive=True),
    Bound("/home/daytona/notes", "/srv/notes", volume=False),
)
FILES = {"/home/daytona/.local/lib/python3.11/site-packages/corral.pth": "x\n", "/srv/project/": ""}

SANDBOXES = {
    "sandbox-root": (RECIPE, ROOT),
    "sandbox-rootless": (replace(RECIPE, trees=SHARED), ROOTLESS),
    "sandbox-ephemeral": (replace(RECIPE, ephemeral=True), ROOT),
    "sandbox-with-tools": (replace(RECIPE, trees=(*OWNED, *TOOLS), files=FILES, hostname="workbench"), ROOT),
    "sandbox-with-network": (replace(RECIPE, trees=SHARED, redirect=True), ROOTLESS),
    "sandbox-on-layers": (replace(RECIPE, layers=LAYERS), ROOT),
    "sandbox-with-mounts": (replace(RECIPE, trees=(*OWNED, OVERLAID), mounts=MOUNTS), ROOT),
    "sandbox-with-a-copy": (replace(RECIPE, trees=(*OWNED, replace(OVERLAID, copied=True), OVERLAID)), ROOT),
    "sandbox-with-mounts-rootless": (replace(RECIPE, trees=(*SHARED, OVERLAID), mounts=MOUNTS), ROOTLESS),
}
CODE = {"uid": CODE_UID, "gid": CODE_GID}
PROGRAMS = {
    "program-code": [*plan_child(LIMITS, soft_limits=False), *plan_program(ROOT, **CODE)],
    "program-code-rootless": [*plan_child(LIMITS, soft_limits=False), *plan_program(ROOTLESS, **CODE)],
    "program-build": [*plan_child(LIMITS, soft_limits=False), *plan_program(ROOT, uid=0, gid=0)],
    "program-soft-limits": [*plan_child(LIMITS, soft_limits=True), *plan_program(ROOTLESS, **CODE)],
}


def compare(name: str, text: str) -> None:
    file = GOLDEN / f"{name}.txt"
    if os.environ.get(UPDATE):
        file.write_text(text + "\n", encoding="utf-8")
    agreed = file.read_text(encoding="utf-8") if file.exists() else ""
    assert text + "\n" == agreed, (
        f"the plan differs from tests/engine/golden/{file.name}. If that is meant, write it anew with "
        f"`{UPDATE}=1 make test ARGS=tests/engine/test_plan.py` and read the difference before you commit it"
    )


@pytest.mark.parametrize("name", SANDBOXES)
def test_sandbox_plan_is_the_one_agreed_on(name: str) -> None:
    recipe, identity = SANDBOXES[name]
    compare(name, render(plan_sandbox(recipe, identity)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_plan_is_the_one_agreed_on(name: str) -> None:
    compare(name, render(PROGRAMS[name]))


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == SANDBOXES.keys() | PROGRAMS.keys()


@pytest.mark.parametrize("name", SANDBOXES)
def test_mounts_show_no_path_of_the_host(name: str) -> None:
    recipe, identity = SANDBOXES[name]
    for step in plan_sandbox(recipe, identity):
        if isinstance(step, Overlay):
            assert not any(lower.startswith("/") or "data" in lower for lower in step.lowers), step
            assert not step.upper.startswith("/"), step


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_ends_its_plan_with_the_filter(name: str) -> None:
    kinds = [type(step).__name__ for step in PROGRAMS[name]]
    assert kinds[-1] == "Filter"
    # The order that makes each step count: a filter without no_new_privs is refused, an id change resets capabilities.
    assert kinds.index("BecomeUser") < kinds.index("SetCapabilities") < kinds.index("NoNewPrivileges")


def test_only_root_inside_keeps_any_capability() -> None:
    masks = {
        name: [step.mask for step in steps if isinstance(step, SetCapabilities)] for name, steps in PROGRAMS.items()
    }
    assert masks.pop("program-build") == [BUILD_CAPABILITIES]
    assert set(map(tuple, masks.values())) == {(0,)}
    admin, ptrace, mknod = 21, 19, 27
    assert not any(BUILD_CAPABILITIES >> bit & 1 for bit in (admin, ptrace, mknod))


@pytest.mark.parametrize("name", ["sandbox-with-tools", "sandbox-on-layers", "sandbox-with-a-copy"])
def test_recipe_survives_the_wire(name: str) -> None:
    recipe, _ = SANDBOXES[name]
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_earlier_versions_can_read_a_recipe_without_mounts() -> None:
    """They take no other fields: a sandbox that this version made can be listed and started by the one before."""
    data = RECIPE.to_json()
    assert {key for tree in data["trees"] for key in tree} == {"target", "lowers", "writable"}
    assert not {"mounts", "copies", "redirect"} & data.keys()
