"""The fake passes what a fake can pass."""

from corral.backends.memory import MemoryBackend
from corral.testing.pytest import conformance_tests

CANNOT = {
    "shell": "its shell knows a few commands",
    "processes": "it executes nothing",
    "python": "it executes nothing",
    "bounded": "its files are in memory",
    "oom": "it executes nothing",
    "loops": "its programs are tasks of the event loop that started them",
}

test_conformance = conformance_tests(MemoryBackend, cannot=CANNOT)
