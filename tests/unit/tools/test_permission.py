"""Rules for paths and commands, and where a name really leads."""

import pytest

from corral import AsyncSandbox, SandboxFileNotFoundError
from corral.tools.permission import (
    DEFAULT,
    PERMISSIVE,
    READONLY,
    STRICT,
    Action,
    Operation,
    OperationRules,
    Permissions,
    Rule,
    compile_pattern,
    expand_braces,
    normal_path,
    real_path,
)


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("**/.env", "/.env", True),
        ("**/.env", "/a/b/.env", True),
        ("**/.env", "/a/b.env", False),
        ("**/*.key", "/a/b.key", True),
        ("/etc/**", "/etc/a/b", True),
        ("/etc/**", "/etc", True),
        ("/etc/**", "/etcetera", False),
        ("/a/*", "/a/b", True),
        ("/a/*", "/a/b/c", False),
        ("/a/?", "/a/b", True),
        ("/a/?", "/a//", False),
        ("/a/[!b]", "/a/c", True),
        ("/a/[!b]", "/a/b", False),
        ("/a/[]x]", "/a/]", True),
        ("/a/[b", "/a/[b", True),
        ("/a/[z-a]", "/a/b", False),
        ("/a/[]", "/a/[]", True),
        ("/a/[!]", "/a/[!]", True),
        ("/a/[!]b]", "/a/]", False),
        ("**/*.{js,ts}", "/x/a.ts", True),
        ("**/*.{js,ts}", "/x/a.py", False),
        ("**/a\nb", "/x/a\nb", True),
        ("/a.b", "/axb", False),
    ],
)
def test_patterns(pattern: str, path: str, matches: bool) -> None:
    assert bool(compile_pattern(pattern).fullmatch(path)) is matches


def test_in_a_command_a_star_matches_anything() -> None:
    assert compile_pattern("rm *", command=True).fullmatch("rm -rf /a/b")
    assert not compile_pattern("rm *").fullmatch("rm -rf /a/b")


def test_braces_that_would_grow_beyond_measure_stand_for_themselves() -> None:
    pattern = "{a,b}" * 20
    assert expand_braces(pattern) == (pattern,)
    assert expand_braces("{a,b}{c,d}") == ("ac", "ad", "bc", "bd")


def test_the_first_rule_that_matches_decides() -> None:
    rules = Permissions(
        default="deny",
        rules=(Rule("/shared/**", "allow"),),
        read=OperationRules("ask", (Rule("/a/b", "allow"), Rule("/a/*", "deny", "why"))),
    )
    decided = {path: rules.decide("read", path).action for path in ("/a/b", "/a/c", "/shared/x", "/else")}
    assert decided == {"/a/b": "allow", "/a/c": "deny", "/shared/x": "allow", "/else": "ask"}
    assert rules.decide("write", "/else").action == "deny"
    found = rules.decide("read", "/a/c").rule
    assert found is not None
    assert found.note == "why"


@pytest.mark.parametrize(
    ("pattern", "denied"),
    [
        ("secrets", ["/w/secrets", "/w/secrets/a", "/w/deep/secrets/b/c", "/tmp/secrets/a"]),
        ("conf/keys", ["/w/conf/keys/a"]),
        ("/srv/keys", ["/srv/keys", "/srv/keys/a/b"]),
        ("**/.git", ["/w/.git/config"]),
        ("{.git,.hg}", ["/w/.hg/store/x"]),
        ("**/*secret*", ["/w/my-secrets/a.txt"]),
    ],
)
def test_what_denies_a_folder_denies_all_that_is_in_it(pattern: str, denied: list[str]) -> None:
    rules = Permissions(rules=(Rule(pattern, "deny"),)).within("/w")
    assert [rules.decide("read", path).action for path in denied] == ["deny"] * len(denied)
    others = ["/w/secret/a", "/w/keys/a", "/srv/keys2/a", "/w/.gitignore", "/w/a"]
    assert {rules.decide("read", path).action for path in others[-4:]} == {"allow"}


def test_rules_for_a_folder_never_loosen_others() -> None:
    def decide(path: str, *rules: Rule, default: Action = "allow") -> Action:
        return Permissions(default=default, rules=rules).within("/w/secrets/here").decide("read", path).action

    assert decide("/a/x", Rule("/a", "ask")) == "ask"
    assert decide("/a/x", Rule("/a", "ask"), Rule("/a/**", "deny")) == "deny"
    assert decide("/a/x", Rule("/a", "ask"), default="deny") == "deny"
    assert decide("/a/x", Rule("/a/x", "allow"), Rule("/a", "deny")) == "allow", "the first that matches decides"
    assert decide("/a/x", Rule("/a", "allow"), default="deny") == "deny", "to allow a folder is not to allow its files"
    assert decide("/w/secrets/here/x", Rule("secrets", "deny")) == "allow", "the working folder is not shut by its name"
    assert decide("/w/secrets/here/secrets/x", Rule("secrets", "deny")) == "deny"
    assert decide("/w/secrets/other", Rule("secrets", "deny")) == "allow"
    command = Permissions(execute=OperationRules("allow", (Rule("cat", "deny"),)))
    assert command.decide("execute", "cat/x").action == "allow", "a command is no path"


def test_a_path_rule_that_begins_with_a_tilde_is_refused() -> None:
    for pattern in ("~", "~/.ssh/**", "~daytona/x", "{a,~/b}"):
        with pytest.raises(ValueError, match="~ is not expanded"):
            Permissions(read=OperationRules("allow", (Rule(pattern, "deny"),)))
        with pytest.raises(ValueError, match="~ is not expanded"):
            Permissions(rules=(Rule(pattern, "deny"),))
    assert Permissions(execute=OperationRules("deny", (Rule("~/bin/tool *", "allow"),)))
    assert Permissions(rules=(Rule("~lock", "deny"), Rule("*~", "deny")))


@pytest.mark.parametrize(
    ("name", "operation", "target", "action"),
    [
        ("default", "read", "/x/.env", "deny"),
        ("default", "read", "/x/a.py", "allow"),
        ("default", "write", "/etc/passwd", "ask"),
        ("default", "execute", "rm -rf /", "deny"),
        ("default", "execute", "ls", "ask"),
        ("default", "ls", "/", "allow"),
        ("permissive", "write", "/etc/passwd", "deny"),
        ("permissive", "write", "/home/a", "allow"),
        ("permissive", "execute", "mkfs.ext4 /dev/x", "deny"),
        ("readonly", "write", "/home/a", "deny"),
        ("readonly", "grep", "/home/a", "allow"),
        ("strict", "glob", "/home/a", "ask"),
        ("strict", "read", "/home/.ssh/id", "deny"),
    ],
)
def test_presets(name: str, operation: Operation, target: str, action: Action) -> None:
    preset = {"default": DEFAULT, "permissive": PERMISSIVE, "readonly": READONLY, "strict": STRICT}[name]
    assert preset.decide(operation, target).action == action


def test_a_tool_that_could_never_do_anything_is_known() -> None:
    assert READONLY.never("write")
    assert not READONLY.never("read")
    one = Permissions(default="deny", write=OperationRules("deny", (Rule("/tmp/**", "allow"),)))
    assert not one.never("write")
    assert one.never("edit")


async def test_real_path_follows_links_inside() -> None:
    async with AsyncSandbox(backend="memory") as box:
        files, home = box.files, "/home/daytona"
        await files.write("real/deep/a.txt", "x")
        await files.symlink("door", "real/deep")
        await files.symlink("up", "../daytona/real")
        await files.symlink("out", "/etc")
        await files.symlink("one", "two")
        await files.symlink("two", "one")

        async def lead(path: str) -> str:
            return await real_path(files, path, workdir=home)

        assert await lead("door/a.txt") == f"{home}/real/deep/a.txt"
        assert await lead("door/..") == f"{home}/real"
        assert await lead("up/deep/new") == f"{home}/real/deep/new"
        assert await lead("out/passwd") == "/etc/passwd"
        assert await lead("real/deep/a.txt/below") == f"{home}/real/deep/a.txt/below"
        assert await lead("/../../x") == "/x"
        with pytest.raises(SandboxFileNotFoundError, match="too many symbolic links"):
            await lead("one/x")
    assert normal_path("door/../x", workdir=home) == f"{home}/x"
