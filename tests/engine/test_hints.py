"""Each hint about packages is followed to its end, at every door: what it names is run, and then it works.

On the test ground, with an index that has one package, `hello`. What a hint names is taken out of its text: a hint that
changes and leads nowhere is a failure here.
"""

import sys

import pytest

from support.index import run_with_index

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the embedded engine is Linux only"),
    pytest.mark.needs_root,
]

IMPORT = "import hello; print(hello.version)"
INSTALL = f"pip install -q --no-warn-script-location hello && python3 -c '{IMPORT}'"


def test_in_a_program() -> None:
    answer = run_with_index(
        """
        import re
        def follow(call, pattern, **options):
            "What works once what the hint names is done."
            try:
                with Sandbox(**options) as box:
                    return ["no error", call(box)]
            except CorralError as error:
                found = re.search(pattern, str(error.hint))
                assert found, error.hint
                kind = type(error).__name__
            named = eval("dict({})".format(found[0].replace("…", "'hello'")))
            with Sandbox(**named) as box:
                return [kind, call(box)]

        def run(box): return box.run_code(code, check=True, timeout=60).stdout.strip()
        def install(box): return box.exec(command, check=True, timeout=60).stdout.strip()
        tell(imported=follow(run, r"packages=\\[.*\\]"), installed=follow(install, r'network="packages"'))
        tell(image=follow(run, r"packages=\\[…\\]", image="python:3"))
        """,
        code=IMPORT,
        command=INSTALL,
    )
    assert answer == {
        "imported": ["ExitError", "1.0"],
        "installed": ["ExitError", "1.0"],
        "image": ["CapabilityError", "1.0"],
    }


COMMANDS = """
import re, shlex, subprocess
def corral(*words):
    done = subprocess.run([sys.executable, "-m", "corral.cli", *words], capture_output=True, text=True, timeout=90)
    return done.returncode, done.stdout.strip(), done.stderr

def flags(pattern, text):
    found = re.search(pattern, text)
    assert found, text
    return shlex.split(found[0].replace("NAME", "hello"))
"""


def test_on_the_command_line() -> None:
    answer = run_with_index(
        COMMANDS
        + """
def follow(pattern, *words, before="run"):
    code, _, said = corral(before, *words)
    return [code, corral(before, *flags(pattern, said), *words)[1]]

tell(imported=follow("--package hello", "-c", code))
tell(installed=follow("--network packages", "-l", "bash", "-c", command))
refused = corral("run", "--image", "python:3", "-c", code)
named = flags(r"--package", refused[2])
tell(image=[refused[0], corral("run", *named, "hello", "-c", code)[1]])

corral("sandbox", "create", "--name", "box", "--lifetime", "5m")
for name, inside in {"module": f"python3 -c '{code}'", "pip": command}.items():
    _, _, said = corral("sandbox", "exec", "box", inside)
    named = flags(r"corral sandbox network box packages", said)[1:]
    opened = corral(*named)
    first = "pip install -q hello && " if "pip install hello" in said else ""
    tell(**{f"sandbox_{name}": [opened[0], corral("sandbox", "exec", "box", first + inside)[1]]})
    corral("sandbox", "network", "box", "none")
    corral("sandbox", "exec", "box", "pip uninstall -qy hello")
corral("sandbox", "rm", "box")
""",
        code=IMPORT,
        command=INSTALL,
        timeout=180,
    )
    assert answer == {
        "imported": [1, "1.0"],
        "installed": [1, "1.0"],
        "image": [125, "1.0"],
        "sandbox_module": [0, "1.0"],
        "sandbox_pip": [0, "1.0"],
    }


def test_in_the_forge() -> None:
    answer = run_with_index(
        COMMANDS
        + """
Path("one.py").write_text("import sys, hello; open(sys.argv[2], 'w').write(hello.version)")
Path("contest.toml").write_text('objective = "x"\\n[[candidates]]\\nscript = "one.py"\\npackages = ["hello"]\\n')
def winner(text): return (re.findall(r"Winner: (\\w+)", text) or [text])[0]
code, out, said = corral("forge", "run", "one.py", "-o", "x")
named = flags(r"--package hello", out + said)
tell(module=[code, winner(corral("forge", "run", "one.py", "-o", "x", *named, "--artifacts", "kept")[1])])
(log,) = Path("kept").glob("*/events.jsonl")
tell(doing=[json.loads(line)["data"]["doing"].split()[0] for line in log.open() if '"packages"' in line][:2])
code, out, said = corral("forge", "run")
tell(asked=[code, winner(corral("forge", "run", *flags(r"--package hello", said))[1])])
code, out, said = corral("forge", "run", "one.py", "-o", "x", "--image", "python:3")
tell(image=[code, winner(corral("forge", "run", "one.py", "-o", "x", *flags("--package", said), "hello")[1])])
""",
        timeout=180,
    )
    assert answer.pop("doing") == ["getting", "Collecting"]
    assert answer == {"module": [1, "one"], "asked": [2, "one"], "image": [1, "one"]}


def test_at_a_server() -> None:
    """With the official SDK: what it can't have says how the server is started to have it."""
    pytest.importorskip("daytona")
    answer = run_with_index(
        COMMANDS
        + """
import contextlib, signal
from daytona import CreateSandboxFromImageParams, Daytona, DaytonaConfig, Image
os.environ["CORRAL_API_KEY"] = "k" * 40

@contextlib.contextmanager
def serving(*words):
    argv = [sys.executable, "-m", "corral.cli", "serve", "--port", "0", *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        line = next(line for line in process.stdout if line.startswith("listening on "))
        yield Daytona(DaytonaConfig(api_key="k" * 40, api_url=line.split()[-1]))
        process.send_signal(signal.SIGTERM)

said = {}
with serving() as daytona:
    for name, image in {"named": "python:3.12", "built": Image.debian_slim("3.12").pip_install("hello")}.items():
        try:
            daytona.create(CreateSandboxFromImageParams(image=image))
        except Exception as error:
            said[name] = str(error)
import venv
venv.create("environment")
(library,) = Path("environment/lib").glob("python*/site-packages")
(library / "hello.py").write_text("version = '1.0'")
with serving("--venv", "environment") as daytona:
    tell(venv=daytona.create().process.code_run(code).result.strip())
for name, text in said.items():
    with serving(*flags(r"(?<=corral serve )--package NAME", text)) as daytona:
        box = daytona.create()
        box.stop()
        box.start()
        tell(**{f"{name}_package": box.process.code_run(code).result.strip()})
    with serving(*flags(r"--network packages", text)) as daytona:
        tell(**{f"{name}_network": daytona.create().process.exec(command, timeout=60).result.strip()})
        tell(**{f"{name}_kept": daytona.get(box.id).process.code_run(code).result.strip()})
""",
        code=IMPORT,
        command=INSTALL,
        timeout=240,
    )
    assert answer.pop("venv") == "1.0"
    assert answer == {f"{name}_{what}": "1.0" for name in ("named", "built") for what in ("package", "network", "kept")}


def test_for_a_model() -> None:
    """The model is told to ask; what its user then gives, and what it then runs, works."""
    answer = run_with_index(
        """
        import asyncio
        from corral import Environment
        from corral.tools import CodeTool, ShellTool
        async def ask(**options):
            async with Environment(**options) as environment:
                code_tool, shell_tool = CodeTool(environment), ShellTool(environment)
                first = await code_tool({"code": code, "language": "python"})
                second = await shell_tool({"command": command})
                return first.splitlines(), second.splitlines()
        (imported, installed) = asyncio.run(ask())
        tell(imported=imported[-1], installed=installed[-1])
        tell(added=asyncio.run(ask(packages=["hello"]))[0][0])
        (imported, installed) = asyncio.run(ask(network="packages"))
        tell(may=imported[-1], did=installed[0])
        """,
        code=IMPORT,
        command=INSTALL,
    )
    begin = "[python: there is no module 'hello'; if it is a package, "
    assert answer["installed"].startswith("[network: blocked ")
    assert answer["installed"].endswith("ask the user to allow it]")
    assert answer["imported"] == f"{begin}ask the user to add it, or to allow pip install hello]"
    assert answer["added"] == "1.0"
    assert answer["may"] == f"{begin}run pip install hello before it]"
    assert answer["did"] == "1.0"
