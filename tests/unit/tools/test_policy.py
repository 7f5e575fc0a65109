"""The words of a restricted command: what is allowed, and what the model is told about the rest."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.errors import PolicyError
from corral.tools.policy import READONLY_COMMANDS, ShellPolicy, split_command

WORKDIR = "/workspace"


def refuse(policy: ShellPolicy, command: str) -> str:
    with pytest.raises(PolicyError) as caught:
        policy.check(command, workdir=WORKDIR)
    return str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        "cat a > b",
        "cat a >> b",
        "cat < a",
        "cat a | sh",
        "cat a; rm b",
        "cat a & rm b",
        "cat a && rm b",
        "cat a || rm b",
        "cat a\nrm b",
        "cat a\rrm b",
        "cat `rm b`",
        "cat $(rm b)",
        "cat 'a' > b",
        'cat "a"; rm b',
        "cat a\\\\; rm b",
    ],
)
def test_shell_syntax_is_refused(command: str) -> None:
    expected = f"Command not allowed (shell syntax is not available in restricted mode): {command!r}"
    assert refuse(ShellPolicy(readonly=True), command) == expected


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("grep 'a|b; c' f", ["grep", "a|b; c", "f"]),
        ('grep "$(x) > y" f', ["grep", "$(x) > y", "f"]),
        ("grep don\\'t f", ["grep", "don't", "f"]),
        ("grep \\> f", ["grep", ">", "f"]),
        ("echo ''", ["echo", ""]),
        ("grep -v x", ["grep", "-v", "x"]),
    ],
)
def test_what_is_quoted_is_a_word(command: str, words: list[str]) -> None:
    assert ShellPolicy(readonly=True).check(command, workdir=WORKDIR) == words


def test_unbalanced_quotes_are_refused() -> None:
    assert refuse(ShellPolicy(readonly=True), "cat 'a") == 'Command not allowed (unbalanced quotes): "cat \'a"'
    with pytest.raises(PolicyError):
        split_command('echo "a')


def test_readonly_allows_what_only_reads() -> None:
    assert len(READONLY_COMMANDS) == 17
    policy = ShellPolicy(readonly=True)
    for command in READONLY_COMMANDS:
        assert policy.check(f"{command} x", workdir=WORKDIR) == [command, "x"]
    for command in ("rm x", "find .", "env", "sort x", "sed -i s/a/b/ x", "/tmp/cat x", "./cat x", "catx", ""):
        assert refuse(policy, command) == f"Command not allowed: {command!r}"


def test_allowed_is_matched_word_by_word() -> None:
    policy = ShellPolicy.of(allowed=["git log", "npm run *", "ls"])
    for command in ("git log", "git log -3", "npm run build", "ls -la"):
        policy.check(command, workdir=WORKDIR)
    for command in ("git", "git push", "git logs", "gitlog", "npm run", "lsof"):
        assert refuse(policy, command) == f"Command not allowed: {command!r}"


@pytest.mark.parametrize(
    "command",
    [
        "rm x",
        "/bin/rm x",
        "./rm x",
        "git push",
        "env rm x",
        "/usr/bin/env -i rm",
        "sh -c 'rm x'",
        "bash -c 'cd a&&rm x'",
        "xargs /bin/rm",
        "find . -exec rm {} +",
        "timeout 5 rm x",
        "rm-static x",
        "python3.11 -c 'import os; os.system(\"rm x\")'",
        "/lib64/ld-linux-x86-64.so.2 /bin/rm x",
        "git-2.39 push",
        "perl5.36-x86_64-linux-gnu -e1",
        "env /usr/bin/perl5.36.0 -e1",
    ],
)
def test_blocked_is_refused_however_it_is_started(command: str) -> None:
    assert refuse(ShellPolicy.of(blocked=["rm", "git push", "perl"]), command) == f"Command not allowed: {command!r}"


@pytest.mark.parametrize("command", ["echo rm", "grep rm notes", "git pull", "find . -name rm", "rmdir x", "perldoc x"])
def test_blocked_word_elsewhere_is_just_a_word(command: str) -> None:
    assert ShellPolicy.of(blocked=["rm", "git push", "perl"]).check(command, workdir=WORKDIR)


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("cat .env", "/workspace/.env"),
        ("cat a/b/.env", "/workspace/a/b/.env"),
        ("cat ./x/../.env", "/workspace/.env"),
        ("cat secrets/key", "/workspace/secrets/key"),
        ("cat secrets/deep/er/key", "/workspace/secrets/deep/er/key"),
        ("cat src/a.pem", "/workspace/src/a.pem"),
        ("grep --file=.env x", "/workspace/.env"),
        ("dd if=.env", "/workspace/.env"),
        ("grep -f.env x", "/workspace/.env"),
        ("cat /etc/passwd", "/etc/passwd"),
        ("cat ../other", "/other"),
        ("cat /workspace/../etc/passwd", "/etc/passwd"),
        ("cat /workspaces/x", "/workspaces/x"),
    ],
)
def test_ignored_paths_are_refused_wherever_they_are_named(command: str, path: str) -> None:
    policy = ShellPolicy.of(ignore=[".env", "secrets/**", "**/*.pem"])
    assert refuse(policy, command) == f"Access denied: {path}"


@pytest.mark.parametrize("command", ["cat notes", "cat .environment", "ls", "ls -la", "cat src/secrets.py", "cat ."])
def test_other_paths_are_not(command: str) -> None:
    assert ShellPolicy.of(ignore=[".env", "secrets/**", "**/*.pem"]).check(command, workdir=WORKDIR)


def test_absolute_pattern_means_that_path() -> None:
    policy = ShellPolicy.of(ignore=["/workspace/a"])
    assert refuse(policy, "cat a/b") == "Access denied: /workspace/a/b"
    assert policy.check("cat b/a", workdir=WORKDIR)


def test_without_rules_nothing_is_restricted() -> None:
    assert not ShellPolicy().restricted
    assert ShellPolicy.of(allowed=[]).restricted, "an empty list allows nothing"
    assert refuse(ShellPolicy.of(allowed=[]), "ls") == "Command not allowed: 'ls'"


def test_text_in_the_place_of_a_list_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="allowed"):
        ShellPolicy.of(allowed="ls")


@given(st.text(alphabet="ab '\"\\\t$*{=\x0b\xa0", max_size=12))
def test_words_are_those_of_shlex(command: str) -> None:
    try:
        words = shlex.split(command)
    except ValueError:
        with pytest.raises(PolicyError, match="unbalanced"):
            split_command(command)
    else:
        assert split_command(command) == words


@pytest.mark.parametrize(
    "command", ["echo " + "x" * 3_000_000, "echo '" + "x" * 3_000_000 + "'", 'echo "' + "\\x" * 1_000_000 + '"']
)
def test_long_command_takes_no_time_beyond_its_length(command: str) -> None:
    assert len(ShellPolicy.of(allowed=["echo"]).check(command, workdir=WORKDIR)) == 2


def test_command_of_more_words_than_can_be_looked_up_is_refused() -> None:
    policy = ShellPolicy.of(ignore=[".env"])
    assert policy.check("ls " + "x " * 900, workdir=WORKDIR)
    assert refuse(policy, "ls " + "x " * 1000) == "Command not allowed (more than 1000 words)"
    deep = " ".join(f"{number}{'/x' * 200}" for number in range(60))
    assert refuse(policy, f"ls {deep}") == "Command not allowed (its paths are too deep)"
    assert refuse(policy, "ls -" + "x" * 1_000_000 + "/../../../.env").startswith("Access denied: ")


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*.{pem,key}", "deep/a.key"),
        ("{a,b}/c", "b/c"),
        ("/conf", "conf/x"),
        ("/workspace/conf", "conf/x"),
        ("x/../.env", ".env"),
        ("/workspace/x/../.env", ".env"),
        ("./conf/", "conf/x"),
        ("conf//x", "conf/x"),
    ],
)
def test_ignored_pattern_may_be_written_in_many_ways(pattern: str, path: str) -> None:
    assert refuse(ShellPolicy.of(ignore=[pattern]), f"cat {path}") == f"Access denied: {WORKDIR}/{path}"


def test_pattern_from_the_root_means_no_name_deeper_down() -> None:
    assert ShellPolicy.of(ignore=["/conf"]).check("cat src/conf", workdir=WORKDIR)


def test_pattern_that_means_a_home_folder_is_refused_at_once() -> None:
    for pattern in ("~", "~/.ssh", "~daytona/.ssh", "{a,~/b}"):
        with pytest.raises(ValueError, match=r"ignore=.*~ is not expanded"):
            ShellPolicy.of(ignore=[pattern])
    assert refuse(ShellPolicy.of(ignore=["~lock", "*~"]), "cat a/~lock") == "Access denied: /workspace/a/~lock"


@pytest.mark.parametrize("pattern", ["/", ".", "./", "a/..", "{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}"])
def test_pattern_that_can_not_be_kept_is_refused_at_once(pattern: str) -> None:
    with pytest.raises(ValueError, match="ignore="):
        ShellPolicy.of(ignore=[pattern])
    assert ShellPolicy.of(ignore=["", "x"]).check("ls", workdir=WORKDIR), "an empty line means nothing"


@pytest.mark.parametrize("command", ["grep -rf.env x", "tar -czfsecret/x", "cc -I/etc"])
def test_path_glued_to_options_is_seen(command: str) -> None:
    assert refuse(ShellPolicy.of(ignore=[".env", "secret/**"]), command).startswith("Access denied: ")


def test_policy_knows_which_programs_it_lets_through() -> None:
    assert ShellPolicy.of(readonly=True).lets("tail")
    assert not ShellPolicy.of(readonly=True, blocked=["tail"]).lets("tail")
    assert not ShellPolicy.of(allowed=["git log"]).lets("git"), "not with any arguments"
    assert ShellPolicy.of(blocked=["rm"]).lets("tail")


@pytest.mark.parametrize("word", ["a/" * 1_000_000, "secre" * 500_000, "=" + "a/b" * 500_000])
def test_word_that_is_no_path_takes_no_time_beyond_its_length(word: str) -> None:
    policy = ShellPolicy.of(ignore=["**/*secret*", "*a*b*c", "a/**/b/**/c"])
    assert policy.check(f"echo {word}", workdir=WORKDIR) == ["echo", word]
