"""A backend that implements the primitives alone, in one short file, passes but for what it lists."""

from pathlib import Path

from corral.protocol import Backend
from corral.testing.pytest import conformance_tests
from support import toy_backend
from support.tiers import further_backend
from support.toy_backend import ToyBackend

_LIMITS = "it limits nothing"
_PATHS = "its paths are the host's: /tmp is shared, and the workdir is a temporary folder"
_ROOT = "its programs run as the caller, who may be root"
_ORDER = "it reads two pipes: the order between stdout and stderr is lost"
_TREE = "it ends a process group, and a program can leave it"
CANNOT = {
    "oom": _LIMITS,
    "fork_bomb_ends_with_its_timeout": _LIMITS,
    "network_none": "it has the host's network",
    "workdir_exists_and_is_the_cwd": _PATHS,
    "sandboxes_share_nothing": _PATHS,
    "impossible_cwd_is_refused": _PATHS,
    "oversized_argument_is_refused": _PATHS,
    "program_outlives_an_event_loop": _PATHS,
    "long_program_leaves_no_file": _PATHS,
    "running_is_cancel_safe": _PATHS,
    "snippet_leaves_no_file": _PATHS,
    "write_needs_permission": _ROOT,
    "glob_has_its_options": _ROOT,
    "unreadable_is_told_apart": _ROOT,
    "on_output_gets_everything": _ORDER,
    "events_are_in_order": _ORDER,
    "streams_are_apart_and_in_order": _ORDER,
    "timeout_ends_the_whole_tree": _TREE,
    "cancel_ends_the_whole_tree": _TREE,
    "kill_ends_the_whole_tree": _TREE,
    "fork_leaves_the_parent_alone": "a forked child that closes it ends it",
}


def count(backend: Backend) -> int:
    """How many live."""
    assert isinstance(backend, ToyBackend)
    return sum(not sandbox.gone for sandbox in backend.made)


test_conformance = conformance_tests(ToyBackend, cannot=CANNOT, count=count, marks=further_backend)


def test_a_backend_is_short() -> None:
    assert toy_backend.__file__ is not None
    assert len(Path(toy_backend.__file__).read_text(encoding="utf-8").splitlines()) < 200
