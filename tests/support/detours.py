"""Ways to a hidden file that take several calls, for every backend where the kernel keeps a shell tool's rules."""

from __future__ import annotations

from dataclasses import dataclass

HOME = "/home/daytona"
SECRET = "hunter2"
"""What must not be seen. It is in `vault/key` at the beginning."""


@dataclass(frozen=True)
class Detour:
    """Several calls, or a prepared tree, after which a file is no longer at the path of the rule."""

    rule: str
    commands: tuple[str, ...]
    before: str = "true"


# Fifty names of a hundred bytes: the kernel takes no path of more than 4,095.
_NAME = "n" * 100
_MAKE_DEEP = f"sh -c 'for x in $(seq 50); do mkdir {_NAME}; cd {_NAME}; done'"
_GO_DOWN = f"for x in $(seq 50); do cd {_NAME}; done"

DETOURS = {
    "the folder gets another name": Detour("vault/key", ("mv vault moved", "sh -c 'cat moved/k*'")),
    "a folder further up does": Detour("a/b/key", ("sh -c 'mv a new'", "grep -r . new"), "mkdir a; cp -r vault a/b"),
    "the folder can't be listed": Detour("key", ("chmod 311 vault", "sh -c 'cd vault; cat k\"\"ey'")),
    "and is opened on the way": Detour("key", ("chmod 444 vault", "sh -c 'chmod 755 vault; cat vault/k*'")),
    "nor the one a rule begins with": Detour(
        f"{HOME}/vault/key", ("chmod 311 vault", "sh -c 'cd vault; cat k\"\"ey'")
    ),
    "a rule with braces": Detour("{vault,other}/*.{key,k}*", ("sh -c 'cat v*/*'",), "mv vault/key vault/a.key"),
    "a rule from the root": Detour("/vault", ("sh -c 'cat v*/*'",)),
    "a rule that goes up again": Detour(f"{HOME}/x/../vault", ("sh -c 'cat v*/*'",)),
    "a rule for a neighbour": Detour("../../tmp/vault", ("sh -c 'cat /t*/v*/*'",), "mv vault /tmp"),
    "a link that leads out": Detour("door", ("sh -c 'cat d*/k*'",), "mv vault /tmp; ln -s /tmp/vault door"),
    "a link on the way": Detour("door/key", ("sh -c 'cat d*/k*'",), "mv vault /tmp; ln -s /tmp/vault door"),
    "a hard link beside it": Detour("vault/key", ("sh -c 'cat other'",), "ln vault/key other"),
    "a hard link to a file in a hidden folder": Detour("vault/**", ("sh -c 'cat other'",), "ln vault/key other"),
    "a hard link outside of the working folder": Detour("key", ("sh -c 'cat /t*/other'",), "ln vault/key /tmp/other"),
    "a hard link in a folder that can't be listed": Detour(
        "vault/key", ("sh -c 'cat shut/other'",), "mkdir shut; ln vault/key shut/other; chmod 311 shut"
    ),
    "hard links, and a link to one of them": Detour(
        "door", ("sh -c 'cat oth*'",), "ln vault/key other; ln -s vault/key door"
    ),
    "a path that is too long for the kernel": Detour(
        "key",
        (f"sh -c '{_GO_DOWN}; cat k\"\"ey'",),
        f"{_MAKE_DEEP}; sh -c '{_GO_DOWN}; echo {SECRET} > key'",
    ),
    "a link to a file elsewhere": Detour("door", ("sh -c 'cat d*'",), "mv vault /tmp; ln -s /tmp/vault/key door"),
}  # fmt: skip
