"""The ordinary user of the tests really is one."""

import os

import pytest

from support.user import OrdinaryUser, open_ordinary_user


@pytest.mark.needs_user
def test_ordinary_user_has_no_privilege_and_a_home(ordinary_user: OrdinaryUser) -> None:
    done = ordinary_user.run("""
import os, pathlib
pathlib.Path("mine").write_text("x")
print(os.getuid(), os.geteuid(), os.getgroups() in ([], [os.getgid()]), pathlib.Path.home() == pathlib.Path.cwd())
print([line for line in open("/proc/self/status") if line.startswith("CapEff")][0].split()[1].strip("0") == "")
""")
    assert done.stderr == ""
    uid = ordinary_user.uid
    assert uid != 0
    if os.geteuid() == 0:
        assert done.stdout == f"{uid} {uid} True True\nTrue\n"


@pytest.mark.needs_user
def test_ordinary_user_imports_corral_from_a_copy(ordinary_user: OrdinaryUser) -> None:
    done = ordinary_user.run("import click, corral, sys; print(corral.__file__, sys.version_info >= (3, 11))")
    assert done.stdout == f"{ordinary_user.library / 'corral' / '__init__.py'} True\n", done.stderr


@pytest.mark.needs_root
@pytest.mark.needs_user
def test_process_left_behind_fails_the_test_and_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.user.GRACE_SECONDS", 1.0)
    with pytest.raises(AssertionError, match="left behind"), open_ordinary_user(distributions=()) as user:  # noqa: PT012 - the leaving is what raises
        user.run_argv(["setsid", "--fork", "sh", "-c", "exec sleep 1000 >/dev/null 2>&1 </dev/null"])
        assert len(user.list_processes()) == 1
    assert user.list_processes() == []
    assert not user.home.exists()
