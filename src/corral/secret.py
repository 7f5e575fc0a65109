"""Values that programs use without seeing them: secrets, as a spec has them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from corral.errors import SpecError
from corral.network.rules import RuleError
from corral.network.substitution import check_header, check_placeholder, check_value, make_placeholder, read_hosts

MAX_SECRETS = 100
_HINT = 'for example Secret("OPENAI_API_KEY", value=…, hosts=["api.example.org"])'
_NEEDED = frozenset(
    {"HOME", "IFS", "LANG", "LOGNAME", "PATH", "PWD", "PYTHONHOME", "PYTHONPATH", "SHELL", "TERM", "TMPDIR", "USER"}
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")


class Pending:
    """In place of a value that is not known: not yet, for an `Environment`; or no more, after a sandbox was stopped."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that programs inside use without seeing it.

    Inside, the variable `name` holds a placeholder. In requests to one of `hosts` over TLS, it is replaced by the value
    outside of the sandbox, where it stands in `header`: alone, or within `Bearer …` and `Basic …`. The network policy
    must permit the hosts as well.
    """

    name: str
    """The variable inside."""
    value: str | Pending = field(repr=False)
    """A `Variable` in an `Environment`."""
    hosts: Sequence[str]
    """Names of hosts, with wildcards and ports as in a network policy."""
    header: str = "Authorization"
    """The header of requests that the value may stand in; "*" for any, since some services have one of their own."""
    placeholder: str | None = None
    """What programs see. None: a random one for each sandbox."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _VARIABLE.fullmatch(self.name):
            # Not what was given: it may be the value.
            raise SpecError("a secret needs the name of a variable, such as API_KEY", hint="use letters, digits and _")
        if self.name in _NEEDED or self.name.startswith("LD_"):
            raise SpecError(f"programs need the variable {self.name}, so it can't be a secret", hint="use another name")
        hosts = (self.hosts,) if isinstance(self.hosts, str) else self.hosts
        if (
            not isinstance(self.value, str | Pending)
            or not isinstance(self.header, str)
            or not isinstance(hosts, Sequence)
        ):
            raise SpecError(f"secret {self.name!r}: value and header are strings, hosts is a list", hint=_HINT)
        try:
            if isinstance(self.value, str):
                check_value(self.value)
            check_header(self.header)
            if self.placeholder is not None:
                check_placeholder(self.placeholder)
            object.__setattr__(self, "hosts", tuple(str(rule) for rule in read_hosts(hosts)))
        except (RuleError, AttributeError, TypeError) as error:
            raise SpecError(f"secret {self.name!r}: {error}", hint=_HINT) from None

    @classmethod
    def from_env(
        cls, name: str, *, hosts: Sequence[str] | str, header: str = "Authorization", variable: str | None = None
    ) -> Secret:
        """A secret with the value of this process's environment variable of the same name, or of `variable`.

        Raises: SpecError, also if it is not set.
        """
        value = os.environ.get(variable or name)
        if value is None:
            raise SpecError(
                f"secret {name!r}: the environment variable {variable or name} is not set",
                hint=f"set it: export {variable or name}=…",
            )
        return cls(name, value, (hosts,) if isinstance(hosts, str) else tuple(hosts), header)

    @property
    def is_known(self) -> bool:
        """False if nobody has given its value (again)."""
        return isinstance(self.value, str)


def check_secrets(secrets: Sequence[Secret], env: Mapping[str, str]) -> tuple[Secret, ...]:
    """Raises: SpecError for something else than secrets, and for names that are there twice or are in `env`."""
    if not isinstance(secrets, Sequence) or not all(isinstance(each, Secret) for each in secrets):
        raise SpecError("secrets must be a list of Secret", hint=_HINT)
    if len(secrets) > MAX_SECRETS:
        raise SpecError(f"{len(secrets)} secrets are more than {MAX_SECRETS}", hint="use fewer")
    names = [each.name for each in secrets]
    for name in names:
        if names.count(name) > 1 or name in env:
            raise SpecError(f"the variable {name!r} is given twice", hint="as a secret, or in env=")
    placed: dict[str, object] = {}
    for each in secrets:
        meant = (each.value, each.hosts, each.header)
        if each.placeholder is not None and placed.setdefault(each.placeholder, meant) != meant:
            raise SpecError(f"the secret {each.name!r} has the placeholder of another one", hint="leave it out")
    return tuple(secrets)


def place_secrets(secrets: Sequence[Secret], before: Mapping[str, str] | None = None) -> tuple[Secret, ...]:
    """The secrets with a placeholder each: the given one, that of its name in `before`, or a random one."""
    known = before or {}
    return tuple(
        replace(each, placeholder=each.placeholder or known.get(each.name) or make_placeholder()) for each in secrets
    )


def placeholders(secrets: Sequence[Secret]) -> dict[str, str]:
    """What programs see: the variables, with placeholders."""
    return {each.name: each.placeholder for each in secrets if each.placeholder is not None}


def check_known(secrets: Sequence[Secret]) -> None:
    """Raises: SpecError for a secret without a value."""
    for each in secrets:
        if not each.is_known:
            raise SpecError(
                f"secret {each.name!r} has no value",
                hint="give it with set_secrets; a Variable is for an Environment",
            )
