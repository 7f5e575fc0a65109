"""Read-only and hidden paths of one call: they hold for that call and everything it runs, and for no other."""

from collections.abc import AsyncIterator

import pytest

from corral.backends.embedded import EmbeddedBackend
from corral.base.process import AsyncProcess
from corral.client.sandbox import AsyncSandbox
from corral.errors import InvalidCommandError
from corral.spec import Spec

HOME = "/home/daytona"
FILE = f"{HOME}/precious"


@pytest.fixture(scope="module")
async def backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedBackend]:
    backend = EmbeddedBackend(tmp_path_factory.mktemp("data"))
    yield backend
    await backend.aclose()


@pytest.fixture
async def box(backend: EmbeddedBackend) -> AsyncIterator[AsyncSandbox]:
    async with await backend.create(Spec(exec_timeout=30)) as box:
        await box.files.write(FILE, b"old")
        yield box


WAYS_TO_WRITE = {
    "shell": f"echo new > {FILE}",
    "append": f"echo new >> {FILE}",
    "sh -c": f"sh -c 'echo new > {FILE}'",
    "env": f"env sh -c 'echo new > {FILE}'",
    "find -exec": f"find {HOME} -exec sh -c 'echo new > {FILE}' ';' ; false",
    "new file": f"touch {HOME}/another",
    "rename": f"mv {FILE} {FILE}.old",
    "remove": f"rm -f {FILE}",
    "mode": f"chmod 777 {FILE}",
    "link": f"ln {FILE} {HOME}/link",
    "by another path": "echo new > /tmp/../home/daytona/precious",
    "by a link": f"ln -s {FILE} /tmp/link && echo new > /tmp/link",
    "by its own root": f"echo new > /proc/self/root{FILE}",
    "by its own folder": f"cd {HOME} && echo new > /proc/self/cwd/precious",
    "by init's root": f"echo new > /proc/1/root{FILE}",
    "remount": f"mount -o remount,rw {HOME}",
    "unmount": f"umount {HOME}",
    "unshare": f"unshare -rm sh -c 'umount {HOME}; echo new > {FILE}'",
    "nsenter": f"nsenter -t 1 -m sh -c 'echo new > {FILE}'",
    "python": f"python3 -c \"open('{FILE}', 'w').write('new')\"",
    "in the background": f"(setsid sh -c 'echo new > {FILE}' &) ; sleep 0.2; false",
}


@pytest.mark.parametrize("way", WAYS_TO_WRITE)
async def test_read_only_path_can_not_be_written(box: AsyncSandbox, way: str) -> None:
    result = await box.exec(WAYS_TO_WRITE[way], read_only=[HOME])
    assert result.exit_code != 0
    assert await box.files.read(FILE) == b"old"
    assert [info.name for info in await box.files.list(HOME)] == ["precious"]
    mode = (await box.files.stat(FILE)).mode
    assert mode == 0o644


NEIGHBOURS = "for root in /proc/[0-9]*/root /proc/[0-9]*/cwd /proc/[0-9]*/task/*/root; do"


async def start_neighbour(box: AsyncSandbox) -> AsyncProcess:
    """An innocent program of another call, which may see everything."""
    process = await box.start("echo ready; exec sleep 1000", cwd="/")
    async for _ in process.output():
        break
    while not (await box.exec("cat /proc/[0-9]*/comm")).stdout.count("sleep"):
        continue
    return process


async def test_read_only_path_can_not_be_written_through_a_neighbours_root(box: AsyncSandbox) -> None:
    async with await start_neighbour(box):
        script = f"{NEIGHBOURS} echo new > $root{FILE}; echo new > $root/precious; done; true"
        result = await box.exec(script, read_only=[HOME])
        assert result.exit_code == 0
        assert await box.files.read(FILE) == b"old"


async def test_hidden_path_can_not_be_read_through_a_neighbours_root(box: AsyncSandbox) -> None:
    async with await start_neighbour(box):
        script = f"{NEIGHBOURS} cat $root{FILE} $root/precious; done; true"
        result = await box.exec(script, hidden=[FILE])
        assert "old" not in result.stdout


async def test_another_call_of_the_same_sandbox_can_write_meanwhile(box: AsyncSandbox) -> None:
    async with await box.start(f"sleep 0.3; cat {FILE}; echo no > {FILE}", read_only=[HOME]) as restricted:
        assert (await box.exec(f"printf new > {FILE}", check=True)).exit_code == 0
        result = await restricted.wait()
    assert result.stdout == "new"  # it sees what others write
    assert "Read-only" in result.stderr
    assert await box.files.read(FILE) == b"new"


async def test_read_only_ends_with_the_call(box: AsyncSandbox) -> None:
    await box.exec("true", read_only=["/"], hidden=[FILE])
    await box.exec(f"printf new > {FILE}", check=True)
    mounts = (await box.exec("cat /proc/self/mountinfo")).stdout
    assert "precious" not in mounts


async def test_whole_sandbox_can_be_read_only(box: AsyncSandbox) -> None:
    folders = "/ /tmp /home/daytona /workspace /var/tmp /etc /usr /opt /dev/shm"
    script = f"for folder in {folders}; do touch $folder/x && echo wrote $folder; done; true"
    result = await box.exec(script, read_only=["/"])
    assert "wrote" not in result.stdout
    assert (await box.exec(f"cat {FILE}; echo x > /dev/null", read_only=["/"])).stdout == "old"


async def test_hidden_file_reads_as_empty_or_not_at_all(box: AsyncSandbox) -> None:
    result = await box.exec(f"cat {FILE}; cat /proc/self/root{FILE}; cp {FILE} /tmp/copy; cat /tmp/copy", hidden=[FILE])
    assert "old" not in result.output
    assert await box.files.read(FILE) == b"old"


async def test_folders_above_what_is_hidden_keep_their_names_for_the_call(box: AsyncSandbox) -> None:
    await box.files.write("a/b/c/secret", b"hunter2")
    script = "mv a x; mv a/b a/x; mv a/b/c a/b/x; mv a/b/c/secret y; touch a/new a/b/new && mv a/b/new a/b/renamed"
    result = await box.exec(script, hidden=["a/b/c/secret"])
    assert result.exit_code == 0, "what lies beside it can be changed"
    assert await box.files.read("a/b/c/secret") == b"hunter2"
    assert await box.files.exists("a/b/renamed")
    await box.exec("mv a x", check=True)


async def test_hidden_folder_shows_nothing_of_its_content(box: AsyncSandbox) -> None:
    result = await box.exec(
        f"ls -la {HOME}; find /home /tmp /workspace -name precious 2>/dev/null; cat {FILE}", hidden=[HOME], cwd="/"
    )
    assert "old" not in result.output
    assert "precious\n" not in result.stdout
    assert result.exit_code != 0


async def test_hidden_path_can_not_be_written(box: AsyncSandbox) -> None:
    await box.exec(f"echo new > {FILE}; rm -f {FILE}; mv {FILE} /tmp/x", hidden=[FILE])
    assert await box.files.read(FILE) == b"old"


async def test_view_holds_for_root_inside_too(box: AsyncSandbox) -> None:
    try:
        result = await box.exec(
            f"id -u; echo new > {FILE}; umount {HOME}; mount -o remount,rw {HOME}", user="root", read_only=[HOME]
        )
    except NotImplementedError:
        return  # without root there is no other user inside
    assert result.stdout == "0\n"
    assert await box.files.read(FILE) == b"old"


@pytest.mark.parametrize("option", ["read_only", "hidden"])
async def test_missing_path_is_an_error_and_nothing_runs(box: AsyncSandbox, option: str) -> None:
    options = {option: [f"{HOME}/not-there"]}
    with pytest.raises(InvalidCommandError, match="not-there"):
        await box.exec("touch /tmp/ran", **options)  # type: ignore[arg-type]  # both take paths
    assert not await box.files.exists("/tmp/ran")


async def test_paths_with_odd_names_are_restricted_as_well(box: AsyncSandbox) -> None:
    odd = f"{HOME}/a b\\040c\nd"
    await box.files.write(f"{odd}/inner", b"old")
    result = await box.exec(["sh", "-c", 'echo new > "$0/inner"', odd], read_only=[odd, HOME])
    assert result.exit_code != 0
    assert await box.files.read(f"{odd}/inner") == b"old"


async def test_read_only_and_hidden_go_together(box: AsyncSandbox) -> None:
    await box.files.write(f"{HOME}/open/shown", b"shown")
    await box.files.write(f"{HOME}/open/secret/key", b"key")
    script = "cat shown secret/key; echo new > shown; echo new > secret/key"
    result = await box.exec(script, cwd=f"{HOME}/open", read_only=[HOME], hidden=[f"{HOME}/open/secret"])
    assert result.stdout == "shown"
    assert await box.files.read(f"{HOME}/open/shown") == b"shown"


async def test_link_is_restricted_where_it_leads(box: AsyncSandbox) -> None:
    await box.files.symlink("/tmp/link", HOME)
    await box.exec(f"echo new > {FILE}", read_only=["/tmp/link"])
    assert await box.files.read(FILE) == b"old"
