"""What sandboxed code may ask of the kernel: the one table behind the filter, the Docker profile, docs and tests.

An allow list. Every known syscall is named once, so that nothing is let through or refused by oversight; a number that
is not known (newer than the table, or x32) gets ENOSYS, to which every libc has an answer.

The errno of a refusal is chosen for the programs that meet it: ENOSYS, or the error of a kernel built without the
feature, where callers fall back on that; EPERM where the kernel itself would tell an unprivileged caller so.

The filter is one wall of several: it does not look through pointers (paths, `sockaddr`, `clone3`'s struct), and it
assumes no_new_privs, nosuid and nodev mounts, and a user namespace of its own around the code.
"""

from collections.abc import Iterator, Mapping, Sequence
from errno import EAFNOSUPPORT, EINVAL, ENOMEM, ENOPROTOOPT, ENOSYS, EPERM, EPROTONOSUPPORT
from types import MappingProxyType
from typing import Final

from corral.engine.seccomp.rule import ALLOW, PRETEND, Case, Match, Rule

UNKNOWN: Final = Rule(ENOSYS, "not in the table: newer than the policy, or of another ABI")

# --- allowed with any arguments ----------------------------------------------------------------------------------

_ALLOWED: Final = {
    "files": """
    access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fadvise64
    fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fdatasync fgetxattr flistxattr flock fremovexattr
    fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr getxattrat lchown lgetxattr
    link linkat listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat newfstatat open
    openat openat2 pipe pipe2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv
    removexattr removexattrat rename renameat renameat2 rmdir sendfile setxattr setxattrat splice stat statfs statx
    symlink symlinkat sync_file_range syncfs tee truncate umask unlink unlinkat utime utimensat utimes vmsplice write
    writev
    """,
    "events": """
    epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 inotify_add_watch
    inotify_init inotify_init1 inotify_rm_watch poll ppoll pselect6 select signalfd signalfd4 timerfd_create
    timerfd_gettime timerfd_settime
    """,
    "memory": """
    brk map_shadow_stack membarrier mincore mlock mlock2 mlockall mprotect mremap mseal msync munlock munlockall munmap
    pkey_alloc pkey_free pkey_mprotect
    """,
    "processes and threads": """
    arch_prctl execve execveat exit exit_group fork futex futex_requeue futex_wait futex_waitv futex_wake
    get_robust_list getcpu getpgid getpgrp getpid getppid getpriority getrlimit getrusage getsid gettid ioprio_get
    ioprio_set kill pidfd_open pidfd_send_signal restart_syscall rseq sched_get_priority_max sched_get_priority_min
    sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity
    sched_setattr sched_setparam sched_setscheduler sched_yield set_robust_list set_tid_address setpgid setpriority
    setsid tgkill times tkill vfork wait4 waitid
    """,
    "signals": """
    pause rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
    rt_tgsigqueueinfo sigaltstack
    """,
    "time": """
    alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time timer_create
    timer_delete timer_getoverrun timer_gettime timer_settime
    """,
    # apt drops to `_apt` and dpkg chowns: both are bounded by the user namespace's map and by no_new_privs.
    "identity": """
    capget capset getegid geteuid getgid getgroups getresgid getresuid getuid setfsgid setfsuid setgid setgroups
    setregid setresgid setresuid setreuid setuid
    """,
    "sockets that exist": """
    accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg sendmsg
    sendto shutdown
    """,
    # In an IPC namespace of the sandbox's own.
    "System V and POSIX IPC": """
    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl semget
    semop semtimedop shmat shmctl shmdt
    """,
    "machine": "getrandom sysinfo uname",
    "giving up more": "landlock_add_rule landlock_create_ruleset landlock_restrict_self",
    # Only the kernel's own trampolines may call these (anyone else gets SIGILL); refusing them would crash a process
    # that the host's operator traces.
    "host tracing": "uprobe uretprobe",
}

# --- rejected with any arguments ---------------------------------------------------------------------------------

_DENIED: Final[tuple[tuple[int, str, str], ...]] = (
    (EPERM, "changes the mount tree, hence what the sandbox's root and masks are", "mount umount2 pivot_root chroot"),
    (
        EPERM,
        "the new mount API: the same as mount",
        "open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr",
    ),
    # ENOSYS: libmount falls back on /proc/self/mountinfo only then.
    (ENOSYS, "tells the host paths behind the mounts, past any mask over /proc", "statmount listmount"),
    (EPERM, "new namespaces give capabilities over kernel code that trusts its caller", "unshare setns"),
    # ENOSYS: glibc, musl, Go and Rust then use clone, whose flags can be judged.
    (ENOSYS, "its flags sit behind a pointer, where no filter can see CLONE_NEW*", "clone3"),
    (EPERM, "reads or drives other processes, such as the sandbox's init", "ptrace process_vm_readv process_vm_writev"),
    (EPERM, "reaches into other processes", "kcmp pidfd_getfd process_madvise"),
    (EPERM, "runs code in the kernel, or counts what the kernel does", "bpf perf_event_open"),
    (EPERM, "asynchronous kernel work past this filter; many bugs", "io_uring_setup io_uring_enter io_uring_register"),
    # ENOSYS is what a kernel without it says: databases that know it then write in their own threads.
    (
        ENOSYS,
        "one number for the whole machine (aio-max-nr), which a single call can take",
        "io_setup io_submit io_cancel io_destroy io_getevents io_pgetevents",
    ),
    (EPERM, "holds kernel threads at a page fault, which makes races into exploits", "userfaultfd"),
    (EPERM, "keyrings are not namespaced: shared with the host and other sandboxes", "add_key request_key keyctl"),
    (EPERM, "memory that neither the host nor a dump can inspect or reclaim", "memfd_secret"),
    (EPERM, "opens files by inode number, past the root and its mounts", "open_by_handle_at name_to_handle_at"),
    (EPERM, "watches or blocks whole file systems, those of the host too", "fanotify_init fanotify_mark"),
    (EPERM, "loads or replaces the kernel", "init_module finit_module delete_module kexec_load kexec_file_load"),
    (EPERM, "the host's operation", "reboot swapon swapoff acct quotactl quotactl_fd vhangup syslog lookup_dcookie"),
    (EPERM, "the host's clock", "settimeofday clock_settime adjtimex clock_adjtime"),
    (EPERM, "the host's name for the sandbox is the engine's to set", "sethostname setdomainname"),
    (EPERM, "raw hardware and segment access; a history of bugs", "iopl ioperm modify_ldt"),
    # EPERM on get_mempolicy is what makes libnuma (numpy, Java) say that there is no NUMA, and go on.
    (
        EPERM,
        "places memory on the host's nodes; unneeded, and buggy in the past",
        "mbind set_mempolicy get_mempolicy set_mempolicy_home_node move_pages migrate_pages",
    ),
    # ENOSYS, and EINVAL for prctl below: a kernel without seccomp, which programs that confine themselves accept.
    (ENOSYS, "a filter of the code's own could stop or fake calls by user notification", "seccomp"),
    # Its callers can't notice: sync(2) knows no error. fsync and syncfs remain.
    (EPERM, "writes back every file system of the host: slows it, and is a channel to neighbours", "sync"),
    (ENOSYS, "tells which pages of shared files others have read", "cachestat"),
    (
        ENOSYS,
        "no program needs it: its callers fall back, or there are none",
        """
        remap_file_pages process_mrelease lsm_get_self_attr lsm_set_self_attr lsm_list_modules file_getattr file_setattr
        set_thread_area get_thread_area sysfs ustat
        """,
    ),
    (
        ENOSYS,
        "not in today's kernels, whatever the number says",
        """
        _sysctl afs_syscall create_module epoll_ctl_old epoll_wait_old get_kernel_syms getpmsg nfsservctl putpmsg
        query_module security tuxcall uselib vserver
        """,
    ),
)

# --- judged by their arguments -----------------------------------------------------------------------------------

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_RAW, _SOCK_PACKET = 1, 2, 3, 10
_SOCK_TYPE_MASK: Final = 0xF  # above it: SOCK_NONBLOCK and SOCK_CLOEXEC
_NETLINK_ROUTE: Final = 0
_IP, _ICMP, _TCP, _UDP, _ICMPV6 = 0, 1, 6, 17, 58

_IS_INTERNET: Final = Match(0, (_AF_INET, _AF_INET6))

_SOCKET: Final = Rule(
    EAFNOSUPPORT,
    "other families (VSOCK reaches the hypervisor; ALG, PACKET, XDP, TIPC ...) are host surface without a use here",
    (
        Case((Match(0, (_AF_UNIX,)),), ALLOW),
        # libnl, Go, Java and getifaddrs use ROUTE. For the others never EPERM: useradd, su and passwd give up when
        # NETLINK_AUDIT fails with anything but what a kernel without it says.
        Case((Match(0, (_AF_NETLINK,)), Match(2, (_NETLINK_ROUTE,))), ALLOW),
        Case((Match(0, (_AF_NETLINK,)),), EPROTONOSUPPORT),
        # Protocols are listed since each other one (SCTP, DCCP, MPTCP, L2TP, SMC) loads its module into the host's
        # kernel. SOCK_SEQPACKET is not: with protocol 0 it is SCTP.
        Case(
            (
                _IS_INTERNET,
                Match(1, (_SOCK_STREAM, _SOCK_DGRAM), _SOCK_TYPE_MASK),
                Match(2, (_IP, _ICMP, _TCP, _UDP, _ICMPV6)),
            ),
            ALLOW,
        ),
        # EPERM makes busybox's ping try the datagram kind.
        Case((_IS_INTERNET, Match(1, (_SOCK_RAW, _SOCK_PACKET), _SOCK_TYPE_MASK)), EPERM),
        Case((_IS_INTERNET,), EPROTONOSUPPORT),
    ),
)

_SOCKETPAIR: Final = Rule(EAFNOSUPPORT, "only UNIX pairs have a use", (Case((Match(0, (_AF_UNIX,)),), ALLOW),))

_SOL_SOCKET, _SOL_TCP, _SOL_IPV6 = 1, 6, 41
_TCP_ULP: Final = 31
_SO_SET_REPLACE: Final = 64  # IPT_ and IP6T_: the same number at both levels
_SO_ATTACH: Final = (26, 50, 51, 52)  # FILTER, BPF, REUSEPORT_CBPF, REUSEPORT_EBPF
_IPV6_FLOWLABEL_MGR: Final = 32

_SETSOCKOPT: Final = Rule(
    ALLOW,
    "TCP_ULP puts kernel TLS and the like on a socket, SO_SET_REPLACE loads iptables rules: both were ways to root; "
    "socket filters and flow labels are taken from one store of the whole machine",
    (
        Case((Match(1, (_SOL_SOCKET,)), Match(2, _SO_ATTACH)), ENOPROTOOPT),
        Case((Match(1, (_SOL_IPV6,)), Match(2, (_IPV6_FLOWLABEL_MGR,))), ENOPROTOOPT),
        Case((Match(1, (_SOL_TCP,)), Match(2, (_TCP_ULP,))), ENOPROTOOPT),
        Case((Match(1, (_IP, _SOL_IPV6)), Match(2, (_SO_SET_REPLACE,))), ENOPROTOOPT),
    ),
)

_BAD_IOCTLS: Final = (
    0x5412,  # TIOCSTI: types into the terminal that the sandbox was started from
    0x541C,  # TIOCLINUX: the same by paste, on a virtual console
    0x541D,  # TIOCCONS: takes the host's console output
    0x541F,  # TIOCSSERIAL: ports and interrupts of a serial line
    0x5423,  # TIOCSETD: line disciplines (n_gsm, n_hdlc ...), loaded as host modules
    0x5437,  # TIOCVHANGUP: hangs up the terminal
    0x8940,  # SIOCGIFBR: this and the next five load a host module (bridge, 8021q), for any caller
    0x8941,  # SIOCSIFBR
    0x8982,  # SIOCGIFVLAN
    0x8983,  # SIOCSIFVLAN
    0x89A0,  # SIOCBRADDBR
    0x89A1,  # SIOCBRDELBR
    0xC0045877,  # FIFREEZE: stops all writers of a file system
    0xC0045878,  # FITHAW
)

_CLONE_NEW: Final = 0x7E02_0000  # NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET (NEWTIME: clone3 only)

_CLONE_FILES, _CLONE_THREAD = 0x400, 0x1_0000

_CLONE: Final = Rule(
    EPERM,
    "new namespaces give capabilities over kernel code that trusts its caller; a second process with the same table of "
    "descriptors keeps file locks under the number of one that is dead, where they can't be counted",
    (
        Case((Match(0, (_CLONE_FILES,), _CLONE_FILES | _CLONE_THREAD),), EINVAL),
        Case((Match(0, (0,), _CLONE_NEW),), ALLOW),
    ),
)

_F_SETPIPE_SZ: Final = 1031
_LARGE_PIPE: Final = 0xFFFE_0000  # from 128 KiB on

# Locks of an open file belong to no process, so that their owner is unknown. EINVAL is what a kernel before 3.15
# says, and makes programs use the old kind, which init counts. Pipes are counted as well, and not how large they are.
_FCNTL: Final = Rule(
    ALLOW,
    "some locks are not charged to any user, large pipes only to the user: kinds that can be counted are allowed",
    (
        Case((Match(1, (36, 37, 38)),), EINVAL),  # F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW
        Case((Match(1, (_F_SETPIPE_SZ,)), Match(2, (0,), _LARGE_PIPE)), ALLOW),
        Case((Match(1, (_F_SETPIPE_SZ,)),), EPERM),  # as beyond the user's allowance
    ),
)

# Where the host gives crashes to a program (core_pattern with a pipe, as Ubuntu and Fedora have it), the kernel starts
# that program whatever the limit is, outside of every limit of the sandbox, unless it is 1. Those who set it to 0
# (ssh-agent, gpg, `ulimit -c 0`) want no dump of theirs, and have that already; some give up if it can't be set.
_RLIMIT_CORE: Final = 4
_KEEP_CORE_LIMIT: Final = "the limit of core dumps stays 1, with which the kernel starts no program of the host"
_SETRLIMIT: Final = Rule(ALLOW, _KEEP_CORE_LIMIT, (Case((Match(0, (_RLIMIT_CORE,)),), PRETEND),))

# A filter can't know its caller's own number, so 0, which means the caller, is the only one. For priorities and
# processors the kernel itself keeps init, which has capabilities, from those who have none; for limits it does not.
_OWN_LIMITS: Final = (
    "another process, such as the sandbox's init, could be crippled by new limits; 0 is the caller itself"
)
_ASKS_ONLY: Final = Case((Match(2, (0,)), Match(2, (0,), high=True)), ALLOW)
_ITSELF: Final = Case((Match(0, (0,)),), ALLOW)
_PRLIMIT: Final = Rule(
    EPERM,
    f"{_OWN_LIMITS}; {_KEEP_CORE_LIMIT}",
    (
        _ASKS_ONLY,
        # Who wants to hear the old limit as well would be told nothing.
        Case((Match(0, (0,)), Match(1, (_RLIMIT_CORE,)), Match(3, (0,)), Match(3, (0,), high=True)), PRETEND),
        Case((Match(1, (_RLIMIT_CORE,)),), EPERM),
        _ITSELF,
    ),
)

_PRCTL: Final = Rule(
    ALLOW,
    "options that reach past the process",
    (
        Case((Match(0, (22,)),), EINVAL),  # PR_SET_SECCOMP: see seccomp
        Case((Match(0, (35,)),), EPERM),  # PR_SET_MM: fakes what /proc tells of the process
        # PR_SCHED_CORE idles a sibling core, PR_SET_MEMORY_MERGE shares pages with neighbours (a channel),
        # PR_FUTEX_HASH takes kernel memory by choice.
        Case((Match(0, (62, 67, 78)),), EINVAL),
    ),
)

# PER_LINUX32, UNAME26, ADDR_NO_RANDOMIZE (setarch, thread sanitizer) change only what the process sees of itself.
_HARMLESS_PERSONA: Final = 0x8 | 0x2_0000 | 0x4_0000
_PERSONALITY: Final = Rule(
    EPERM,
    "other personas (READ_IMPLIES_EXEC, MMAP_PAGE_ZERO ...) undo the kernel's hardening",
    (
        Case((Match(0, (0,), 0xFFFF_FFFF & ~_HARMLESS_PERSONA),), ALLOW),
        Case((Match(0, (0xFFFF_FFFF,)),), ALLOW),  # asks only
    ),
)

_S_IFMT: Final = 0o170000
_PLAIN_NODES: Final = (0, 0o010000, 0o100000, 0o140000)  # 0 means regular; FIFO, regular, socket


def _mknod(mode_argument: int) -> Rule:
    plain = Match(mode_argument, _PLAIN_NODES, _S_IFMT)
    return Rule(EPERM, "device nodes, and overlay whiteouts, which are one", (Case((plain,), ALLOW),))


def _no_huge_pages(argument: int, flag: int) -> Rule:
    # ENOMEM is what the kernel says when the pool is empty, as it mostly is.
    asked = Case((Match(argument, (flag,), flag),), ENOMEM)
    return Rule(ALLOW, "huge pages come from the host's pool, past memory limits", (asked,))


_JUDGED: Final[Mapping[str, Rule]] = {
    "clone": _CLONE,
    "fcntl": _FCNTL,
    "ioctl": Rule(ALLOW, "see the list of requests", (Case((Match(1, _BAD_IOCTLS),), EPERM),)),
    # MADV_MERGEABLE. EINVAL is what a kernel without page merging says.
    "madvise": Rule(
        ALLOW, "merged pages tell by their timing what neighbours hold", (Case((Match(2, (12,)),), EINVAL),)
    ),
    "memfd_create": _no_huge_pages(1, 0x4),
    "mknod": _mknod(1),
    "mknodat": _mknod(2),
    "mmap": _no_huge_pages(3, 0x4_0000),
    "personality": _PERSONALITY,
    "prctl": _PRCTL,
    "prlimit64": _PRLIMIT,
    "setrlimit": _SETRLIMIT,
    "setsockopt": _SETSOCKOPT,
    "shmget": _no_huge_pages(2, 0o4000),
    "socket": _SOCKET,
    "socketpair": _SOCKETPAIR,
}


def _entries() -> Iterator[tuple[str, Rule]]:
    for names in _ALLOWED.values():
        yield from ((name, Rule(ALLOW)) for name in names.split())
    for errno, reason, names in _DENIED:
        yield from ((name, Rule(errno, reason)) for name in names.split())
    yield from _JUDGED.items()


def _table() -> Mapping[str, Rule]:
    table: dict[str, Rule] = {}
    for name, rule in _entries():
        # Twice would let the later entry win silently: the one mistake that a list this long invites.
        if name in table:
            raise AssertionError(f"{name} is decided twice")
        table[name] = rule
    return MappingProxyType(dict(sorted(table.items())))


POLICY: Final = _table()
CONTAINER_POLICY: Final[Mapping[str, Rule]] = MappingProxyType(
    {**POLICY, "prlimit64": Rule(EPERM, _OWN_LIMITS, (_ITSELF, _ASKS_ONLY)), "setrlimit": Rule(ALLOW)}
)
"""For containers, which set their limit of core dumps as they like: as a profile for Docker, the rule that keeps it
would take 70,000 lines, and what the host does with the crash of a container is the daemon's to know."""


def decide(name: str, args: Sequence[int] = (0, 0, 0, 0, 0, 0)) -> int:
    """The errno that `name` with these arguments gets; 0 when it runs."""
    return POLICY.get(name, UNKNOWN).decide(args)
