"""Secrets in requests: where a placeholder stands in the named header, the value takes its place.

Pure: what a request may carry, and what it carries instead. Nothing here shows a value, in errors and reprs included.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from corral.network.rules import Rule, RuleError, read_rule

if TYPE_CHECKING:
    from corral.network.settings import GateCredential, GateSecret  # for Linux only; this module is for all

ANY_HEADER = "*"
"""As the name of a header: every one that a secret may stand in."""
MAX_VALUE_BYTES = 32 * 1024
MAX_HOSTS = 100
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_PLACEHOLDER = re.compile(r"[A-Za-z0-9_.-]{16,200}")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# They say where a message ends and who it is for, or are for the next hop alone.
_NEVER = frozenset(
    {
        "host", "content-length", "transfer-encoding", "connection", "te", "trailer", "upgrade", "keep-alive",
        "proxy-connection", "proxy-authorization", "proxy-authenticate", "expect",
    }
)  # fmt: skip
_READS = ("GET", "HEAD")
_ECHOES = ("TRACE", "TRACK")
_UNKNOWN = "the value of this secret is not known since the sandbox was stopped: it has to be given again"

Headers = Sequence[tuple[str, str]]


class SecretRefusedError(ValueError):
    """A request that a secret can't be put into; says why, without values."""


def make_placeholder() -> str:
    """A new random placeholder."""
    return f"corral-secret-{secrets.token_hex(16)}"


def check_placeholder(text: str) -> str:
    """Raises: RuleError, unless it is long and plain enough that it can't stand in a request by chance."""
    if not _PLACEHOLDER.fullmatch(text):
        raise RuleError("a placeholder has 16 to 200 letters, digits, '.', '_' and '-'")
    return text


def check_value(value: str) -> str:
    """Raises: RuleError for what can't stand in a header; it does not show the value."""
    if not value or value != value.strip():
        raise RuleError("the value is empty, or begins or ends with a space or a line break: strip it")
    if _CONTROL.search(value):
        raise RuleError("the value has a line break or another control character, which can't stand in a header")
    if any(ord(character) > 255 for character in value):
        raise RuleError("the value has a character beyond Latin-1, which can't stand in a header")
    if len(value) > MAX_VALUE_BYTES:
        raise RuleError(f"the value has {len(value)} bytes; the limit is {MAX_VALUE_BYTES}")
    return value


def check_header(name: str) -> str:
    """Raises: RuleError for what is not the name of a header, and for headers that frame a request."""
    if name != ANY_HEADER and not _TOKEN.fullmatch(name):
        raise RuleError(f"{name!r} is not the name of a header")
    if name.lower() in _NEVER:
        raise RuleError(f"the header {name!r} can't carry a secret")
    return name


def read_hosts(hosts: Iterable[str]) -> tuple[Rule, ...]:
    """The rules of a secret's hosts. Raises: RuleError for addresses and ranges: they are not named in TLS."""
    rules = tuple(dict.fromkeys(read_rule(host) for host in hosts))
    if not rules:
        raise RuleError("it names no hosts")
    if len(rules) > MAX_HOSTS:
        raise RuleError(f"it names more than {MAX_HOSTS} hosts")
    for rule in rules:
        if rule.network is not None:
            raise RuleError(f"{str(rule)!r} is an address: a secret is for hosts that are named")
    return rules


def overlap(one: Rule, other: Rule) -> bool:
    """True if two rules for names have a host and port in common."""
    if None not in (one.port, other.port) and one.port != other.port:
        return False
    return one.permits_name(other.host) or other.permits_name(one.host)


class Substitution:
    """What is put into the requests of one sandbox."""

    def __init__(self, held: Iterable[GateSecret] = (), credentials: Iterable[GateCredential] = ()) -> None:
        self._secrets = [(each, read_hosts(each.hosts)) for each in held]
        self._credentials = [(each, read_rule(each.host)) for each in credentials]

    def concerns(self, host: str, port: int) -> bool:
        """True if requests to a host have to be read: then TLS ends at the gate."""
        return any(rule.permits_name(host, port) for _, rules in self._secrets for rule in rules) or any(
            rule.permits_name(host, port) for _, rule in self._credentials
        )

    def apply(
        self, headers: Headers, *, host: str, port: int, secure: bool, method: str = "GET"
    ) -> tuple[tuple[str, str], ...]:
        """The headers of a request as they leave, with values for placeholders.

        Raises:
            SecretRefusedError: a placeholder in a header that is given twice, in a request without TLS or one whose
                answer is the request, or of a secret whose value is not known.
        """
        mine = [each for each, rules in self._secrets if any(rule.permits_name(host, port) for rule in rules)]
        done = [(name, _fill(name, content, mine)) for name, content in headers]
        pairs = zip(headers, done, strict=True)
        changed = {name.lower() for (name, before), (_, content) in pairs if content != before}
        if changed and not secure:
            raise SecretRefusedError(f"a secret for {host} is sent over TLS only: use https")
        if changed and method.upper() in _ECHOES:
            raise SecretRefusedError(f"a secret for {host} is not sent with {method}, whose answer would show it")
        for name in sorted(changed):
            if sum(other.lower() == name for other, _ in done) > 1:
                raise SecretRefusedError(f"the header {name} with a secret is given twice")
        for credential, rule in self._credentials:
            name = credential.header
            if method not in _READS or (credential.secure and not secure):
                continue  # the login of an index is there to install from it, not to publish
            if rule.permits_name(host, port) and name.lower() not in changed:
                done = [(other, content) for other, content in done if other.lower() != name.lower()]
                done.append((name, credential.value))
        return tuple(done)


def _fill(header: str, content: str, mine: Sequence[GateSecret]) -> str:
    name = header.lower()
    here = {
        each.placeholder: each.value
        for each in mine
        if each.header.lower() == name or (each.header == ANY_HEADER and name not in _NEVER)
    }
    if not here:
        return content
    # In one pass: a value that contains another's placeholder is not read again.
    found = re.compile("|".join(re.escape(placeholder) for placeholder in here))

    def value_of(match: re.Match[str]) -> str:
        if not here[match[0]]:
            raise SecretRefusedError(_UNKNOWN)
        return here[match[0]]

    scheme, space, packed = content.partition(" ")
    if name == "authorization" and scheme.lower() == "basic" and space:
        try:
            login = base64.b64decode(packed.strip(), validate=True).decode("latin-1")
        except ValueError:
            login = ""
        if found.search(login):
            filled = found.sub(value_of, login)
            return f"{scheme} {base64.b64encode(filled.encode('latin-1')).decode('ascii')}"
    return found.sub(value_of, content)
