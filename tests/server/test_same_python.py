"""Through the daytona backend a program finds the same Python, pip and PATH as through the service's own calls."""

from pathlib import Path

import pytest
from daytona import Sandbox

from corral.backends.daytona import DaytonaBackend
from support.serving import ServedProcess
from support.wheels import make_wheel

pytestmark = [pytest.mark.needs_userns, pytest.mark.anyio]

WHICH = 'printf %s "$PATH"; for name in python python3 pip; do command -v $name; done'


async def test_a_profile_that_sets_path_does_not_change_what_programs_find(
    sandbox: Sandbox, server: ServedProcess, tmp_path: Path
) -> None:
    # As the profile of many images does. Whatever Python is the host's, this fails if the login shell's PATH is used.
    sandbox.fs.upload_file(b"export PATH=/usr/bin:/bin\n", ".profile")
    sandbox.fs.upload_file(make_wheel(tmp_path, "found").read_bytes(), "found-1.0-py3-none-any.whl")
    backend = DaytonaBackend(api_key=server.key, api_url=server.url)
    try:
        box = await backend.connect(sandbox.id)
        ours = await box.exec(WHICH)
        assert ours.stdout == sandbox.process.exec(WHICH).result
        installed = await box.exec("pip install --quiet --no-index ./found-1.0-py3-none-any.whl")
        assert installed.ok, installed.output
        show = "import found, os, sys; print(found.version, os.path.realpath(sys.executable))"
        theirs = sandbox.process.code_run(show).result
        assert theirs.startswith("1.0 ")
        for name in ("python", "python3"):
            assert (await box.exec([name, "-c", show])).output == theirs
        assert (await box.run_code(show)).output == theirs
    finally:
        await backend.aclose()


async def test_a_login_shell_keeps_the_path_it_was_given(sandbox: Sandbox) -> None:
    given = sandbox.process.exec('printf %s "$PATH"').result
    assert sandbox.process.exec("bash -l -c 'printf %s \"$PATH\"'").result == given
    without = "unset PATH; . /etc/profile; echo $PATH"
    assert "/usr/bin" in sandbox.process.exec(f"env -i HOME=/home/daytona bash --noprofile -c '{without}'").result
