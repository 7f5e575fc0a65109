"""`corral sandbox`: detached sandboxes, found by id, by name, or by the beginning of an id."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from corral.cli import options
from corral.cli.changes import apply_, diff
from corral.cli.display import Progress, paint, plain, print_table, show_seconds, show_size
from corral.cli.failure import ERROR, RunsProgram, say
from corral.cli.forward import forward
from corral.cli.owner import connected, explain_gone, run_on, show_labels, show_owner, show_owners
from corral.cli.run import describe, note, note_left_out, run_inside, to_json
from corral.cli.stdio import Outlet, read_input
from corral.client.registry import get_backend
from corral.client.sandbox import AsyncSandbox
from corral.errors import CorralError, SandboxGoneError, SpecError
from corral.protocol import Backend, Command, lacking
from corral.results import Denial, SandboxInfo, SnapshotInfo, timestamp
from corral.secret import Secret
from corral.sessions.detached import DetachedProgram, choose

_NETWORK_CHARS = 32


@click.group()
def sandbox() -> None:
    """Create, use and remove detached sandboxes, which outlive this command.

    \b
    corral sandbox create --name box --lifetime 2h
    corral sandbox exec box -- python3 -c 'print(6 * 7)'
    corral sandbox cp data.csv box:
    corral sandbox rm box
    """


@sandbox.command()
@click.option("--name", "-n", metavar="NAME", help="A name for it.")
@options.setting_option("lifetime", type=options.TIME, metavar="TIME")
@click.option("--idle", type=options.TIME, metavar="TIME", help="Delete it after this time without use.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Shown by list; for your own use.")
@options.timeout_option
@options.backend_option
@options.spec_option_flags
@options.json_option
def create(
    name: str | None, lifetime: float | None, idle: float | None, labels: tuple[str, ...], timeout: float | None,
    backend: str | Backend, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Create a detached sandbox, and print its id."""
    from corral.spec import Lifetime, make_spec

    spec = make_spec(
        **options.read_spec_options(given),
        name=name,
        labels=options.read_labels(labels),
        lifetime=Lifetime(seconds=lifetime, idle_seconds=idle),
        exec_timeout=timeout,
    )

    async def work() -> SandboxInfo:
        with Progress() as progress:
            made = await AsyncSandbox.create(backend=backend, spec=spec, on_event=progress.take)
        async with _detached(made) as box:
            return await box.info()

    info = asyncio.run(work())
    click.echo(to_json(_describe_sandbox(info)) if as_json else info.sandbox_id)


@contextlib.asynccontextmanager
async def _detached(box: AsyncSandbox, *, name: str | None = None) -> AsyncIterator[AsyncSandbox]:
    """Detach a new sandbox; if that or the block fails, it is deleted."""
    try:
        await box.detach(name=name)
        yield box
    except BaseException:
        await box.kill()
        raise
    finally:
        await box.aclose()


@sandbox.command("list")
@options.backend_option
@click.option("--quiet", "-q", is_flag=True, help="Print only the ids.")
@options.json_option
def list_sandboxes(backend: str | Backend, quiet: bool, as_json: bool) -> None:
    """List the detached sandboxes."""
    infos = asyncio.run(AsyncSandbox.list(backend=backend))
    if as_json:
        click.echo(to_json([_describe_sandbox(info) for info in infos]))
    elif quiet:
        for info in infos:
            click.echo(info.sandbox_id)
    elif not infos:
        click.echo("no sandboxes")
    else:
        rows = [
            [info.sandbox_id, plain(info.name or "-"), info.state, _show_age(info),
             show_seconds(info.deadline) if info.deadline is not None else "-", _show_network(info),
             show_owner(info), show_labels(info)]
            for info in sorted(infos, key=lambda info: info.created)
        ]  # fmt: skip
        print_table(
            rows, headers=["ID", "NAME", "STATE", "AGE", "LEFT", "NETWORK", "OWNER", "LABELS"], whole_in_a_pipe=True
        )


def _show_age(info: SandboxInfo | SnapshotInfo) -> str:
    return show_seconds(max(0.0, time.time() - info.created))


def _show_network(info: SandboxInfo) -> str:
    """The policy for a table; a long one is cut."""
    text = plain(info.network or "-")
    return text if len(text) <= _NETWORK_CHARS else f"{text[: _NETWORK_CHARS - 1]}…"


def _describe_sandbox(info: SandboxInfo) -> dict[str, Any]:
    """For scripts. Times are ISO 8601 in UTC, as in all JSON output."""
    ends = timestamp(time.time() + info.deadline) if info.deadline is not None else None
    return {**asdict(info), "created": timestamp(info.created), "deadline": ends, "owner": info.owner}


@sandbox.command("exec", cls=RunsProgram)
@options.sandbox_argument
@click.argument("command", nargs=-1, required=True, metavar="-- CMD…")
@click.option("--detach", "-d", is_flag=True, help="Run it in the background; `corral sandbox logs` shows its output.")
@click.option("--interactive", "-i", is_flag=True, help="Pass standard input to the program.")
@click.option("--tty", "-t", is_flag=True, help="Give the program a terminal, connected to this one.")
@options.timeout_option
@click.option("--cwd", "-w", metavar="PATH", help="The folder to run in.")
@options.environment_options
@options.user_option
@options.backend_option
@options.json_option
def exec_(
    sandbox_id: str, command: tuple[str, ...], detach: bool, interactive: bool, tty: bool, timeout: float | None,
    cwd: str | None, env: tuple[str, ...], env_file: tuple[Any, ...], user: str | None, backend: str | Backend,
    as_json: bool,
) -> int:  # fmt: skip
    """Run a program in an existing sandbox. One argument is run by the shell, several are an argv.

    The exit code is the program's. 124: it timed out. 125: the sandbox failed, not the program.

    \b
    corral sandbox exec box -- python3 -m http.server
    corral sandbox exec box 'ls | wc -l'
    corral sandbox exec box -d -- ./train.sh
    """
    wanted: Command = command[0] if len(command) == 1 else command
    if detach and (interactive or tty):
        raise SpecError("--detach can't be combined with --interactive or --tty", hint="it runs without input")
    if tty and not (os.isatty(0) and os.isatty(1)):
        raise SpecError("--tty needs stdin and stdout to be a terminal", hint="leave it out in a script")
    variables = options.read_environment(env, env_file)
    call: dict[str, Any] = {"cwd": cwd, "env": variables, "user": user, "timeout": timeout}

    async def work(maker: Backend) -> int:
        if detach:
            number = await maker.start_detached(sandbox_id, wanted, **call)
            click.echo(to_json({"number": number}) if as_json else number)
            return 0
        async with connected(maker, sandbox_id) as box:
            if tty or not as_json:
                flag = f"corral sandbox network {sandbox_id}"
                return await run_inside(box, wanted, terminal=tty, interactive=interactive, flag=flag, **call)
            result = await box.exec(wanted, stdin=read_input() if interactive else None, **call)
        click.echo(to_json(describe(result)))
        return result.exit_code & 0xFF

    return run_on(backend, sandbox_id, work)


@sandbox.command()
@options.sandbox_argument
@click.argument("policies", nargs=-1, metavar="[POLICY…]", shell_complete=options.complete_policy)
@click.option("--denied", "-d", is_flag=True, help="Show what was refused instead; the oldest may be forgotten.")
@options.backend_option
@options.json_option
def network(sandbox_id: str, policies: tuple[str, ...], denied: bool, backend: str | Backend, as_json: bool) -> None:
    """Show what a running sandbox may reach, or change it. Connections that are no longer permitted end.

    \b
    corral sandbox network box                     show the policy
    corral sandbox network box packages,a.org      replace it
    corral sandbox network box none
    corral sandbox network box --denied            what was refused
    """
    if denied and policies:
        raise click.UsageError("--denied and a POLICY can't be combined", click.get_current_context())

    async def work(maker: Backend) -> None:
        async with connected(maker, sandbox_id) as box:
            if denied:
                if "denials" not in (await maker.capabilities()).powers:
                    raise lacking(maker.name, "network --denied", hint="the log of the service may have them")
                _show_denials(await box.denials(), as_json=as_json)
                return
            if policies:
                await box.set_network(",".join(policies))
            policy = box.spec.network
            click.echo(to_json({"network": str(policy), **policy.to_json()}) if as_json else plain(str(policy)))

    run_on(backend, sandbox_id, work)


@sandbox.command()
@options.sandbox_argument
@options.secret_options
@click.option("--none", "remove", is_flag=True, help="Remove all of them.")
@options.backend_option
@options.json_option
def secrets(
    sandbox_id: str, secrets: tuple[str, ...], secret_files: tuple[Path, ...], remove: bool, backend: str | Backend,
    as_json: bool,
) -> None:  # fmt: skip
    """Show the secrets of a running sandbox, or replace all of them. Their values are never shown.

    A sandbox that was stopped does not know the values any more, until they are given again.

    \b
    corral sandbox secrets box                                       show them
    corral sandbox secrets box --secret OPENAI_API_KEY@api.example.org
    corral sandbox secrets box --none
    """
    if remove and secrets:
        raise click.UsageError("--none and --secret can't be combined", click.get_current_context())
    wanted = options.read_secrets(secrets, secret_files)

    async def work(maker: Backend) -> None:
        async with connected(maker, sandbox_id) as box:
            if remove or wanted:
                await box.set_secrets(wanted)
            _show_secrets(box.spec.secrets, as_json=as_json)

    run_on(backend, sandbox_id, work)


def _show_secrets(found: Sequence[Secret], *, as_json: bool) -> None:
    rows = [
        {
            "name": each.name, "hosts": list(each.hosts), "header": each.header, "placeholder": each.placeholder,
            "known": each.is_known,
        }
        for each in found
    ]  # fmt: skip
    if as_json:
        click.echo(to_json(rows))
    elif not found:
        click.echo("no secrets")
    else:
        shown = [
            [each.name, ",".join(each.hosts), each.header, "known" if each.is_known else "missing: give it again"]
            for each in found
        ]
        print_table(shown, headers=["NAME", "HOSTS", "HEADER", "VALUE"], whole_in_a_pipe=True)


def _show_denials(denied: Sequence[Denial], *, as_json: bool) -> None:
    if as_json:
        click.echo(to_json([asdict(denial) for denial in denied]))
    elif not denied:
        click.echo("nothing was refused")
    else:
        rows = [
            [plain(denial.host), "-" if denial.port is None else str(denial.port), denial.rule, str(denial.count)]
            for denial in denied
        ]
        print_table(rows, headers=["HOST", "PORT", "WHY", "TIMES"], whole_in_a_pipe=True)


@sandbox.command()
@click.argument("source", metavar="SRC", shell_complete=options.complete_end)
@click.argument("target", metavar="DST", shell_complete=options.complete_end)
@options.git_settings_option
@options.backend_option
def cp(source: str, target: str, git_settings: bool, backend: str | Backend) -> None:
    """Copy a file or folder into a sandbox or out of it. The end inside is written ID:PATH; `-` is stdin or stdout.

    \b
    corral sandbox cp data.csv box:               into its working folder
    corral sandbox cp src/. box:/workspace        a folder's content
    corral sandbox cp box:out/report.html .
    corral sandbox cp box:log.txt - | less
    """
    from corral.cli import transfer

    origin, goal = transfer.CopyEnd.parse(source), transfer.CopyEnd.parse(target)
    sandbox_id = transfer.check_ends(origin, goal)

    async def work(maker: Backend) -> None:
        async with connected(maker, sandbox_id) as box:
            if origin.sandbox_id is None:
                await transfer.copy_in(box, origin.path, goal.path)
            else:
                note_left_out(await transfer.copy_out(box, origin.path, goal.path, git_settings=git_settings))

    run_on(backend, sandbox_id, work)


@sandbox.command()
@options.sandbox_argument
@click.argument("number", required=False, type=int, metavar="[NUMBER]")
@click.option("--follow", "-f", is_flag=True, help="Keep printing until the program ends.")
@click.option("--list", "-l", "as_list", is_flag=True, help="List the programs.")
@options.backend_option
@options.json_option
def logs(
    sandbox_id: str, number: int | None, follow: bool, as_list: bool, backend: str | Backend, as_json: bool
) -> None:
    """Show the output of a program started with `exec --detach`; without NUMBER, of the latest one."""

    async def work(maker: Backend) -> None:
        if as_list or (as_json and number is None):
            programs = [_describe_program(each) for each in await maker.list_detached(sandbox_id)]
            if as_json:
                click.echo(to_json(programs))
            else:
                _show_programs(programs)
        elif as_json:
            output = b"".join([data async for data in maker.follow_detached(sandbox_id, number, follow=False)])
            program = choose(await maker.list_detached(sandbox_id), sandbox_id, number)
            click.echo(to_json({**_describe_program(program), "output": output.decode("utf-8", "replace")}))
        else:
            outlet = Outlet()
            async for data in maker.follow_detached(sandbox_id, number, follow=follow):
                outlet.write("stdout", data)
            outlet.finish()

    run_on(backend, sandbox_id, work)


def _show_programs(programs: Sequence[dict[str, Any]]) -> None:
    if not programs:
        click.echo("no programs")
    rows = [
        [str(each["number"]), each["state"], "-" if each["exit_code"] is None else str(each["exit_code"]),
         plain(each["text"])]
        for each in programs
    ]  # fmt: skip
    print_table(rows, headers=["NUMBER", "STATE", "CODE", "COMMAND"], align=["right"], whole_in_a_pipe=True)


def _describe_program(program: DetachedProgram) -> dict[str, Any]:
    about: dict[str, Any] = {"number": program.number, "text": program.text}
    if program.argv is not None:
        about["argv"] = list(program.argv)
    about |= {"state": "running" if program.running else "ended", "exit_code": program.exit_code}
    if program.record_bytes is not None:
        about["log_bytes"] = program.record_bytes
    return about


@sandbox.command()
@click.argument("sandbox_ids", nargs=-1, metavar="[ID…]", shell_complete=options.complete_sandbox)
@click.option("--all", "-a", "everything", is_flag=True, help="All of yours, except those of `corral serve`.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation. Without a terminal there is no question.")
@click.option("--force", "-f", is_flag=True, help="Don't ask for confirmation, and ignore sandboxes that don't exist.")
@options.backend_option
def rm(sandbox_ids: tuple[str, ...], everything: bool, yes: bool, force: bool, backend: str | Backend) -> int:
    """Delete sandboxes, with their processes and files."""
    if not sandbox_ids and not everything:
        raise click.UsageError("nothing to remove: pass an ID, or --all", click.get_current_context())
    if sandbox_ids and everything:
        raise click.UsageError("IDs and --all can't be combined", click.get_current_context())
    asking = not (yes or force) and sys.stdin.isatty() and sys.stderr.isatty()
    maker = get_backend(backend)
    if everything:
        return asyncio.run(_remove_all(maker, asking=asking))
    return asyncio.run(_remove(maker, list(dict.fromkeys(sandbox_ids)), asking=asking, quiet=force))


async def _remove_all(backend: Backend, *, asking: bool) -> int:
    """Delete all sandboxes that belong to no server; returns the exit code."""
    infos = await backend.list()
    mine = [info.sandbox_id for info in infos if info.owner is None]
    others = [info for info in infos if info.owner is not None]
    code = ERROR
    if not mine or not asking or click.confirm(f"end {_count(mine)}, with all their processes and files?", err=True):
        code = await _delete(backend, mine, quiet=True)
    if others:
        note(
            f"{_count(others)} of `corral serve` ({show_owners(others)}) not deleted: "
            "delete them through the server, or give their IDs"
        )
    return code


async def _remove(backend: Backend, wanted: Sequence[str], *, asking: bool, quiet: bool) -> int:
    """Delete these sandboxes; returns the exit code."""
    infos = await backend.list() if asking else ()
    others = [info for info in infos if info.owner is not None and _is_meant(info, wanted)]
    question = f"{_count(others)} of `corral serve` ({show_owners(others)}), whose clients may use them. End them?"
    if others and not click.confirm(question, err=True):
        return ERROR
    return await _delete(backend, wanted, quiet=quiet)


def _is_meant(info: SandboxInfo, wanted: Sequence[str]) -> bool:
    return any(
        each in (info.sandbox_id, info.name) or (len(each) >= 4 and info.sandbox_id.startswith(each)) for each in wanted
    )


def _count(things: Sequence[object]) -> str:
    return f"{len(things)} sandbox" if len(things) == 1 else f"{len(things)} sandboxes"


async def _delete(backend: Backend, wanted: Sequence[str], *, quiet: bool) -> int:
    outcomes = await asyncio.gather(*(backend.delete(each) for each in wanted), return_exceptions=True)
    failures = 0
    for each, outcome in zip(wanted, outcomes, strict=True):
        if isinstance(outcome, SandboxGoneError):
            better = await explain_gone(backend, each, outcome)
            if quiet and better is outcome:
                continue
            outcome = better  # noqa: PLW2901 - the same, said better
        if isinstance(outcome, CorralError):
            say(outcome.message, hint=outcome.hint)
            failures += 1
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            click.echo(each)
    return ERROR if failures else 0


for command in (forward, diff, apply_):
    sandbox.add_command(command)


@sandbox.command()
@options.sandbox_argument
@options.backend_option
def stop(sandbox_id: str, backend: str | Backend) -> None:
    """Stop a sandbox: end its processes and keep its files, until `start` or `rm`."""
    run_on(backend, sandbox_id, lambda maker: maker.stop(sandbox_id))
    click.echo(sandbox_id)


@sandbox.command()
@options.sandbox_argument
@options.backend_option
def start(sandbox_id: str, backend: str | Backend) -> None:
    """Start a stopped sandbox with its files. Its lifetime starts again."""

    async def work(maker: Backend) -> tuple[str, list[Secret]]:
        async with contextlib.aclosing(await maker.start(sandbox_id)) as box:
            return box.id, [each for each in box.spec.secrets if not each.is_known]

    started, missing = run_on(backend, sandbox_id, work)
    click.echo(started)
    if missing:
        flags = " ".join(f"--secret {_spell_secret(each)}" for each in missing)
        note(f"a stop forgets the values of secrets; give them again: corral sandbox secrets {sandbox_id} {flags}")


def _spell_secret(secret: Secret) -> str:
    """As `--secret` takes it."""
    header = "" if secret.header == "Authorization" else f"/{secret.header}"
    return shlex.quote(f"{secret.name}@{','.join(secret.hosts)}{header}")


@sandbox.command()
@options.sandbox_argument
@click.option("--name", "-n", metavar="NAME", help="A name for the snapshot.")
@options.backend_option
def snapshot(sandbox_id: str, name: str | None, backend: str | Backend) -> None:
    """Take a snapshot of the files, and print its id. `snapshots` lists them."""
    click.echo(run_on(backend, sandbox_id, lambda maker: maker.snapshot(sandbox_id, name)))


@sandbox.command()
@click.option("--delete", "-d", "unwanted", multiple=True, metavar="ID", help="Delete this snapshot; may be repeated.")
@options.backend_option
@options.json_option
def snapshots(unwanted: tuple[str, ...], backend: str | Backend, as_json: bool) -> None:
    """List the snapshots, or delete some. Sandboxes created from a deleted snapshot keep working."""
    maker = get_backend(backend)

    async def work() -> Sequence[SnapshotInfo]:
        for each in unwanted:
            await maker.delete_snapshot(each)
        return await maker.list_snapshots()

    infos = asyncio.run(work())
    if as_json:
        click.echo(to_json([{**asdict(info), "created": timestamp(info.created)} for info in infos]))
    elif unwanted:
        click.echo("\n".join(unwanted))
    elif not infos:
        click.echo("no snapshots")
    else:
        rows = [
            [info.snapshot_id, plain(info.name or "-"), info.sandbox_id or "-", _show_age(info),
             show_size(info.size_bytes) if info.size_bytes is not None else "-"]
            for info in infos
        ]  # fmt: skip
        print_table(rows, headers=["ID", "NAME", "SANDBOX", "AGE", "SIZE"])


@sandbox.command()
@options.sandbox_argument
@click.option("--name", "-n", metavar="NAME", help="A name for the new sandbox.")
@options.backend_option
def fork(sandbox_id: str, name: str | None, backend: str | Backend) -> None:
    """Create a detached copy of a sandbox with its files, and print the new id."""

    async def work(maker: Backend) -> str:
        async with _detached(await maker.fork(sandbox_id), name=name) as box:
            return box.id

    click.echo(run_on(backend, sandbox_id, work))


@sandbox.command()
@options.backend_option
@options.json_option
def gc(backend: str | Backend, as_json: bool) -> None:
    """Remove what killed processes left behind, and report it. Running and stopped sandboxes are never touched."""
    from corral.backends.embedded import EmbeddedBackend, keepers, report

    maker = get_backend(backend)
    if not isinstance(maker, EmbeddedBackend):
        raise lacking(maker.name, "gc", hint="use --backend embedded")
    folder = maker.data_folder
    with Progress() as progress:
        progress.show("looking for what was left behind …")
        before = report.measure_leftovers(folder)
        removed = keepers.sweep_now(folder)
        freed = max(0, before - report.measure_leftovers(folder))
    if as_json:
        click.echo(to_json({"removed": removed, "freed_bytes": freed}))
        return
    for sandbox_id in removed:
        click.echo(f"{paint('removed', 'green')} {sandbox_id}")
    if not removed and not freed:
        click.echo("nothing to remove")
    else:
        note(f"{len(removed)} sandboxes, {show_size(freed)} freed")
