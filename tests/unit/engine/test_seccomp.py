"""The policy and what is compiled from it, without a kernel."""

import errno
import json
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any

import pytest
from seccomp_profile import docker_profile

from corral.engine.errors import UnsupportedError
from corral.engine.seccomp.bpf import RET_ALLOW, RET_ERRNO, RET_KILL_PROCESS, compile_filter, verdict
from corral.engine.seccomp.install import Prepared, native_arch
from corral.engine.seccomp.numbers import ARCHES, NUMBERS, UnsupportedArchError, numbers
from corral.engine.seccomp.policy import CONTAINER_POLICY, POLICY, decide
from corral.engine.seccomp.rule import ALLOW, PRETEND, Case, Match, Rule
from support.bpf import simulate

JUDGED = sorted(name for name, rule in POLICY.items() if rule.cases)
JUDGED_IN_CONTAINERS = sorted(name for name, rule in CONTAINER_POLICY.items() if rule.cases)
HIGH = 1 << 32  # what the kernel drops from an int

# Said once more by hand: a slip in the table must not be copied into its test.
MUST_RUN = """
read write openat close mmap munmap mprotect brk clone execve execveat exit_group wait4 futex rt_sigaction
rt_sigreturn rseq set_robust_list getrandom pipe2 epoll_pwait eventfd2 memfd_create statx newfstatat getdents64
socket connect bind ioctl prctl fchmod fchmodat fchmodat2 setresuid setgroups capset mknodat pidfd_open close_range
membarrier sched_getaffinity clock_gettime landlock_restrict_self inotify_init1 shmget personality
"""
MUST_FAIL = """
mount umount2 pivot_root chroot unshare setns open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick
mount_setattr statmount listmount clone3 ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd bpf
perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register keyctl add_key request_key memfd_secret
open_by_handle_at name_to_handle_at fanotify_init fanotify_mark init_module finit_module delete_module kexec_load
kexec_file_load reboot swapon swapoff acct quotactl quotactl_fd settimeofday clock_settime adjtimex clock_adjtime
iopl ioperm modify_ldt vhangup syslog lookup_dcookie seccomp mbind move_pages migrate_pages set_mempolicy
set_mempolicy_home_node
"""

NO_ARGS = (0, 0, 0, 0, 0, 0)


@pytest.fixture(params=ARCHES)
def arch(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def answer(arch: str, name: str, *args: int) -> int:
    """What the filter returns for a call, as an errno (0: runs)."""
    got = simulate(compile_filter(arch), arch=arch, nr=numbers(arch)[name], args=args)
    return ALLOW if got == RET_ALLOW else got - RET_ERRNO or PRETEND


def corners(rule: Rule) -> Iterator[Sequence[int]]:
    """Arguments on both sides of each border that the rule draws."""
    matches = [match for case in rule.cases for match in case.when]
    yield from product(*(_corners([match for match in matches if match.argument == i]) for i in range(6)))


def _corners(matches: list[Match]) -> list[int]:
    found = {0}
    for match in matches:
        free = ~match.mask & (HIGH - 1)
        found |= {*match.values, match.values[0] | free, match.values[0] | HIGH, match.values[-1] + 1, match.mask}
    return sorted(found | {HIGH * HIGH - 1}) if matches else [0]


# --- the tables ---------------------------------------------------------------------------------------------------


def test_every_known_syscall_is_decided_and_every_decided_one_is_known() -> None:
    assert set(POLICY) == set().union(*NUMBERS.values())


def test_numbers_are_unique_and_those_of_the_kernel(arch: str) -> None:
    table = numbers(arch)
    assert len(set(table.values())) == len(table)
    assert {table[name] for name in ("pidfd_send_signal", "clone3", "cachestat", "file_setattr")} == {
        424,
        435,
        451,
        469,
    }


def test_numbers_of_landmarks() -> None:
    landmarks = {
        "x86_64": {"execve": 59, "fork": 57, "seccomp": 317, "rseq": 334},
        "aarch64": {"execve": 221, "seccomp": 277, "recvmmsg": 243, "rseq": 293},
    }
    assert {arch: {name: numbers(arch)[name] for name in names} for arch, names in landmarks.items()} == landmarks


def test_what_programs_need_is_not_refused_outright() -> None:
    assert [name for name in MUST_RUN.split() if POLICY[name].denies_always] == []


def test_what_must_be_refused_is_refused_for_all_arguments() -> None:
    assert [name for name in MUST_FAIL.split() if not POLICY[name].denies_always] == []


def test_every_refusal_has_a_reason() -> None:
    assert [name for name, rule in POLICY.items() if (rule.errno or rule.cases) and not rule.reason] == []


def test_every_value_can_match_under_its_mask() -> None:
    matches = [match for rule in POLICY.values() for case in rule.cases for match in case.when]
    assert [match for match in matches if any(value & ~match.mask for value in match.values)] == []


# --- the compiled filter ------------------------------------------------------------------------------------------


def test_every_number_gets_what_the_policy_says(arch: str) -> None:
    program, names = compile_filter(arch), {number: name for name, number in numbers(arch).items()}
    for number in range(600):
        got = simulate(program, arch=arch, nr=number)
        assert got == verdict(decide(names.get(number, "no such call"))), (number, names.get(number))


def test_arguments_are_judged_as_the_policy_says(arch: str) -> None:
    program, table = compile_filter(arch), numbers(arch)
    for name in JUDGED:
        if name not in table:
            continue  # aarch64 has the *at calls only
        rule = POLICY[name]
        seen = set()
        for args in corners(rule):
            seen.add(rule.decide(args))
            assert simulate(program, arch=arch, nr=table[name], args=args) == verdict(rule.decide(args)), (name, args)
        assert seen == {rule.errno, *(case.errno for case in rule.cases)}, f"some case of {name} is never reached"


def test_other_architectures_are_killed(arch: str) -> None:
    for other in {"x86_64", "aarch64", "i386", "arm"} - {arch}:
        assert simulate(compile_filter(arch), arch=other, nr=0) == RET_KILL_PROCESS


def test_unknown_and_x32_numbers_do_not_exist(arch: str) -> None:
    for number in (470, 471, 0x4000_0000, 0x4000_0000 | 59, 0x7FFF_FFFF, -1):
        assert simulate(compile_filter(arch), arch=arch, nr=number) == RET_ERRNO | errno.ENOSYS, number


def test_filter_is_one_the_kernel_takes(arch: str) -> None:
    ops = list(struct.iter_unpack("<HBBI", compile_filter(arch)))
    assert len(ops) <= 4096
    assert ops[-1][0] == 0x06, "the last instruction must be a return"
    for at, (code, jt, jf, k) in enumerate(ops):
        assert code in {0x20, 0x54, 0x05, 0x15, 0x35, 0x06}
        furthest = k if code == 0x05 else max(jt, jf)
        assert at + 1 + furthest < len(ops) or code in {0x20, 0x54, 0x06}


def test_search_is_shallow(arch: str) -> None:
    """At most 10 comparisons to any verdict: the filter runs on each call that the kernel's bitmap doesn't skip."""
    ops = list(struct.iter_unpack("<HBBI", compile_filter(arch)))
    depth = {len(ops) - 1: 0}
    for at in reversed(range(len(ops))):
        code, jt, jf, k = ops[at]
        if code == 0x35:
            depth[at] = 1 + max(depth[at + 1 + jt], depth[at + 1 + jf])
        elif code == 0x05:
            depth[at] = depth[at + 1 + k]
        else:
            depth[at] = 0  # a verdict, or an argument check, whose length is that of its rule
    assert depth[4] <= 10


def test_far_jumps_arrive(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Today's filter is too short to need them: a table of which no two neighbours agree."""
    when = (Match(0, tuple(range(1, 9))), Match(1, (7,), 0xF))
    table = {
        name: Rule(number % 97 + 1, cases=(Case(when, number % 89 + 1),) if number % 3 else ())
        for name, number in numbers(arch).items()
    }
    monkeypatch.setattr("corral.engine.seccomp.bpf.POLICY", table)
    program = compile_filter.__wrapped__(arch)
    assert any(code == 0x05 for code, *_ in struct.iter_unpack("<HBBI", program))
    for name, number in numbers(arch).items():
        for args in ((0, 7), (1, 7), (8, 0x17), (8, 6), (9, 7)):
            assert simulate(program, arch=arch, nr=number, args=args) == verdict(table[name].decide(args)), (name, args)


def test_unsupported_machine_is_named() -> None:
    with pytest.raises(UnsupportedArchError, match="riscv64") as caught:
        compile_filter("riscv64")
    assert isinstance(caught.value, UnsupportedError)
    assert caught.value.hint


def test_interpreter_refuses_what_is_not_ours() -> None:
    with pytest.raises(ValueError, match="no return at its end"):
        simulate(b"", arch="x86_64", nr=0)
    with pytest.raises(ValueError, match="0x87"):
        simulate(struct.pack("<HBBI", 0x87, 0, 0, 0), arch="x86_64", nr=0)


# --- single decisions, by hand ------------------------------------------------------------------------------------

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_ALG, AF_VSOCK, AF_XDP = 1, 2, 10, 16, 17, 38, 40, 44
STREAM, DGRAM, RAW, SEQPACKET, PACKET = 1, 2, 3, 5, 10
CLOEXEC_NONBLOCK = 0x80800


SOCKETS = [
    ((AF_UNIX, STREAM, 0), 0),
    ((AF_UNIX, SEQPACKET | CLOEXEC_NONBLOCK, 0), 0),
    ((AF_INET, STREAM | CLOEXEC_NONBLOCK, 6), 0),
    ((AF_INET6, DGRAM, 0), 0),
    ((AF_INET, DGRAM, 1), 0),
    ((AF_INET6, DGRAM, 58), 0),
    ((AF_INET, RAW, 1), errno.EPERM),
    ((AF_INET, RAW | CLOEXEC_NONBLOCK, 255), errno.EPERM),
    ((AF_INET6, RAW, 58), errno.EPERM),
    ((AF_INET, PACKET, 0), errno.EPERM),
    ((AF_INET, SEQPACKET, 0), errno.EPROTONOSUPPORT),
    ((AF_INET, STREAM, 132), errno.EPROTONOSUPPORT),
    ((AF_INET, STREAM, 262), errno.EPROTONOSUPPORT),
    ((AF_NETLINK, RAW | CLOEXEC_NONBLOCK, 0), 0),
    ((AF_NETLINK, DGRAM, 0), 0),
    ((AF_NETLINK, RAW, 6), errno.EPROTONOSUPPORT),
    ((AF_NETLINK, RAW, 9), errno.EPROTONOSUPPORT),
    ((AF_NETLINK, RAW, 12), errno.EPROTONOSUPPORT),
    ((AF_PACKET, RAW, 0), errno.EAFNOSUPPORT),
    ((AF_ALG, SEQPACKET, 0), errno.EAFNOSUPPORT),
    ((AF_VSOCK, STREAM, 0), errno.EAFNOSUPPORT),
    ((AF_VSOCK | HIGH, STREAM, 0), errno.EAFNOSUPPORT),
    ((AF_XDP, RAW, 0), errno.EAFNOSUPPORT),
]

CALLS = [
    ("clone", (0x003D0F00,), 0),  # a thread, as glibc makes it
    ("clone", (0x01200011,), 0),  # fork, as glibc makes it
    ("clone", (0x10000000 | 17,), errno.EPERM),  # NEWUSER
    ("clone", (0x00020000 | 17,), errno.EPERM),  # NEWNS
    ("clone", (0x02000000 | 17,), errno.EPERM),  # NEWCGROUP
    ("clone", (0x40000000 | HIGH | 17,), errno.EPERM),  # NEWNET
    ("clone3", (0, 0), errno.ENOSYS),
    ("socketpair", (AF_UNIX, STREAM, 0), 0),
    ("socketpair", (30, STREAM, 0), errno.EAFNOSUPPORT),  # TIPC
    ("ioctl", (0, 0x5413), 0),  # TIOCGWINSZ
    ("ioctl", (0, 0x5401), 0),  # TCGETS
    ("ioctl", (0, 0x5412), errno.EPERM),  # TIOCSTI
    ("ioctl", (0, 0x5412 | HIGH), errno.EPERM),
    ("ioctl", (0, 0x541C | 0xFFFFFFFF00000000), errno.EPERM),  # TIOCLINUX
    ("ioctl", (0, 0x5423), errno.EPERM),  # TIOCSETD
    ("prctl", (15,), 0),  # PR_SET_NAME
    ("prctl", (38, 1), 0),  # PR_SET_NO_NEW_PRIVS
    ("prctl", (22, 2), errno.EINVAL),  # PR_SET_SECCOMP
    ("prctl", (22 | HIGH, 2), errno.EINVAL),
    ("prctl", (35,), errno.EPERM),  # PR_SET_MM
    ("personality", (0xFFFFFFFF,), 0),
    ("personality", (0xFFFFFFFFFFFFFFFF,), 0),
    ("personality", (0x40000,), 0),  # ADDR_NO_RANDOMIZE
    ("personality", (0x20008,), 0),
    ("personality", (0x400000,), errno.EPERM),  # READ_IMPLIES_EXEC
    ("personality", (0x440000,), errno.EPERM),
    ("personality", (0x100000,), errno.EPERM),  # MMAP_PAGE_ZERO
    ("mknodat", (0, 0, 0o644), 0),
    ("mknodat", (0, 0, 0o010644), 0),
    ("mknodat", (0, 0, 0o100644), 0),
    ("mknodat", (0, 0, 0o140777), 0),
    ("mknodat", (0, 0, 0o020666, 0x103), errno.EPERM),
    ("mknodat", (0, 0, 0o060666, 0x800), errno.EPERM),
    ("mknodat", (0, 0, 0o020000, 0), errno.EPERM),  # an overlay whiteout
    ("setsockopt", (3, 1, 2), 0),
    ("setsockopt", (3, 6, 1), 0),
    ("setsockopt", (3, 17, 31), 0),
    ("setsockopt", (3, 6, 31), errno.ENOPROTOOPT),
    ("setsockopt", (3, 0, 64), errno.ENOPROTOOPT),
    ("setsockopt", (3, 41, 64), errno.ENOPROTOOPT),
    ("setsockopt", (3, 1, 64), 0),
    ("mmap", (0, 4096, 3, 0x22), 0),
    ("mmap", (0, 4096, 3, 0x40022), errno.ENOMEM),
    ("memfd_create", (0, 0x3), 0),
    ("memfd_create", (0, 0x4), errno.ENOMEM),
    ("shmget", (0, 1, 0o1600), 0),
    ("shmget", (0, 1, 0o5600), errno.ENOMEM),
    ("madvise", (0, 0, 4), 0),
    ("madvise", (0, 0, 12), errno.EINVAL),
    ("statmount", (), errno.ENOSYS),
    ("seccomp", (1,), errno.ENOSYS),
    *(("socket", args, expected) for args, expected in SOCKETS),
]


def test_call(arch: str) -> None:
    answers = [(name, args, answer(arch, name, *args)) for name, args, _ in CALLS]
    assert answers == CALLS


def test_mknod_has_its_mode_elsewhere() -> None:
    expected = {0o010644: 0, 0o100644: 0, 0o020666: errno.EPERM}
    assert {mode: answer("x86_64", "mknod", 0, mode) for mode in expected} == expected


# --- handing it over ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [b"", b"1234567", bytes(8 * 4097)], ids=["empty", "torn", "too long"])
def test_what_can_not_be_a_program_is_refused_before_fork(program: bytes) -> None:
    with pytest.raises(ValueError, match="instructions"):
        Prepared(program)


@pytest.mark.parametrize(("machine", "expected"), [("x86_64", "x86_64"), ("aarch64", "aarch64"), ("arm64", "aarch64")])
def test_machine_names(monkeypatch: pytest.MonkeyPatch, machine: str, expected: str) -> None:
    _pretend(monkeypatch, machine)
    assert native_arch() == expected


def test_a_machine_without_a_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, "s390x")
    with pytest.raises(UnsupportedArchError, match="s390x"):
        native_arch()


def _pretend(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    uname = type("Uname", (), {"machine": machine})
    monkeypatch.setattr("os.uname", lambda: uname)


# --- Docker -------------------------------------------------------------------------------------------------------


@cache
def _profile() -> dict[str, Any]:
    return docker_profile()


def _entries(name: str) -> list[dict[str, Any]]:
    return [entry for entry in _profile()["syscalls"] if name in entry["names"]]


def _applies(entry: dict[str, Any], args: Sequence[int]) -> bool:
    return all(_compare(each, args[each["index"]]) for each in entry.get("args", ()))


def _compare(each: dict[str, Any], argument: int) -> bool:
    if each["op"] == "SCMP_CMP_NE":
        return argument != int(each["value"])
    assert each["op"] == "SCMP_CMP_MASKED_EQ"
    return argument & int(each["value"]) == int(each["valueTwo"])


def _docker_answer(entries: list[dict[str, Any]], args: Sequence[int]) -> int:
    """The one entry that applies decides: with two, libseccomp's choice would be its own."""
    (entry,) = (entry for entry in entries if _applies(entry, args))
    if entry["action"] == "SCMP_ACT_ALLOW":
        return ALLOW
    errno_: int = entry["errnoRet"]
    return errno_


def test_limit_of_core_dumps_seems_to_be_set_and_is_not(arch: str) -> None:
    assert answer(arch, "setrlimit", 4, 1000) == PRETEND
    assert answer(arch, "setrlimit", 4 | 1 << 32, 1000) == PRETEND
    assert answer(arch, "setrlimit", 7, 1000) == ALLOW
    assert answer(arch, "prlimit64", 0, 4, 1000, 0) == PRETEND
    assert answer(arch, "prlimit64", 0, 4, 1000, 2000) == errno.EPERM
    assert answer(arch, "prlimit64", 17, 4, 1000, 0) == errno.EPERM
    assert answer(arch, "prlimit64", 0, 4, 0, 2000) == ALLOW
    assert answer(arch, "prlimit64", 0, 7, 1000, 2000) == ALLOW


def test_docker_profile_decides_every_call_once_and_alike() -> None:
    plain = [name for entry in docker_profile()["syscalls"] if "args" not in entry for name in entry["names"]]
    assert sorted([*plain, *JUDGED_IN_CONTAINERS]) == sorted(POLICY)
    wanted = {name: CONTAINER_POLICY[name].decide(NO_ARGS) for name in plain}
    assert {name: _docker_answer(_entries(name), NO_ARGS) for name in plain} == wanted


def test_docker_profile_judges_arguments_alike() -> None:
    for name in JUDGED_IN_CONTAINERS:
        entries, rule = _entries(name), CONTAINER_POLICY[name]
        for args in corners(rule):
            assert _docker_answer(entries, args) == rule.decide(args), (name, args)


def test_docker_profile_differs_in_the_limit_of_core_dumps_alone() -> None:
    assert {name for name, rule in POLICY.items() if CONTAINER_POLICY[name] != rule} == {"prlimit64", "setrlimit"}


def test_docker_profile_compares_an_argument_once_in_a_rule() -> None:
    """runc makes alternatives of two comparisons of one argument."""
    for entry in docker_profile()["syscalls"]:
        indexes = [each["index"] for each in entry.get("args", ())]
        assert len(indexes) == len(set(indexes))


def test_docker_profile_refuses_by_default_and_is_json() -> None:
    profile = json.loads(json.dumps(docker_profile()))
    assert (profile["defaultAction"], profile["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", errno.ENOSYS)
    assert [each["subArchitectures"] for each in profile["archMap"]] == [[], []]
