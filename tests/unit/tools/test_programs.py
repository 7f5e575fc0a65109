"""Which names are names of one program."""

import pytest

from corral.tools.programs import is_runner, means_program


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("perl", "perl"),
        ("perl", "perl5.36.0"),
        ("perl", "perl5.36-x86_64-linux-gnu"),
        ("perl5", "perl5.36.0"),
        ("python", "python3"),
        ("python3", "python3.12"),
        ("python3", "python3.11-dbg"),
        ("python3", "python3.13t"),
        ("python3.11", "python3.11d"),
        ("gcc", "gcc-12"),
        ("gcc", "x86_64-linux-gnu-gcc-12"),
        ("gcc", "x86_64-alpine-linux-musl-gcc"),
        ("gcc-12", "x86_64-linux-gnu-gcc-12"),
        ("g++", "g++-12"),
        ("ruby", "ruby3.1"),
        ("lua", "lua5.4"),
        ("luajit", "luajit-2.1.0-beta3"),
        ("php", "php8.2"),
        ("node", "nodejs"),
        ("nodejs", "node"),
        ("node", "nodejs18"),
        ("awk", "gawk"),
        ("awk", "mawk"),
        ("awk", "gawk-5.2.1"),
        ("bash", "bash-static"),
        ("vim", "vim.tiny"),
        ("nc", "nc.openbsd"),
        ("pyth*", "python3.11"),
    ],
)
def test_one_program_has_many_names(pattern: str, name: str) -> None:
    assert means_program(pattern, name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("perl", "perlbug"),
        ("perl", "perldoc"),
        ("python", "pythonish"),
        ("python3", "python3-config"),
        ("python3", "python3.11-config"),
        ("python3", "x86_64-linux-gnu-python3.11-config"),
        ("python3", "python2"),
        ("python3.11", "python3.12"),
        ("python3.1", "python3.11"),
        ("node", "nodeenv"),
        ("gcc", "gcc-ar-12"),
        ("gcc-12", "gcc"),
        ("gawk", "mawk"),
        ("gawk", "awk"),
        ("rm", "rmdir"),
        ("test", "test.sh"),
        ("md", "md5sum"),
        ("sh", "bash"),
    ],
)
def test_a_common_beginning_does_not_make_one_program(pattern: str, name: str) -> None:
    assert not means_program(pattern, name)


def test_programs_that_start_others_are_known_by_every_name() -> None:
    for name in ("sh", "python3.11", "perl5.36-x86_64-linux-gnu", "bash-static", "ld-linux-x86-64.so.2", "ld.so"):
        assert is_runner(name), name
    for name in ("cat", "perldoc", "git", "ld"):
        assert not is_runner(name), name
