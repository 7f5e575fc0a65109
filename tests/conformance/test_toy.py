"""A backend that implements the primitives alone, in one short file, passes but for what it lists."""

from corral.testing.pytest import conformance_tests
from support.toy_backend import ToyBackend

_PATHS = "its paths are the host's: /tmp is everybody's, and the workdir is a temporary folder"
_ROOT = "its programs run as the caller, who may be root"
CANNOT = {
    "oom": "it limits nothing",
    "network_none": "it has the host's network",
    "fork_bomb_ends_with_its_timeout": "it limits nothing, and the host would be the bomb's",
    "workdir_exists_and_is_the_cwd": _PATHS,
    "write_needs_permission": _ROOT,
    "glob_has_its_options": _ROOT,
    "unreadable_is_told_apart": _ROOT,
}

test_conformance = conformance_tests(ToyBackend, cannot=CANNOT)
