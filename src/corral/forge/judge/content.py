"""Gates about the content of a file: regular expressions and JSON Schemas, checked in a process of their own."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corral.errors import BackendUnavailableError, SpecError
from corral.forge.artifacts import MAX_BYTES
from corral.forge.calling import hash_text
from corral.forge.judge.apart import OutOfBoundsError, look_apart
from corral.forge.judge.gates import GateBase
from corral.forge.judge.model import Bench
from corral.forge.judge.work import Work
from corral.forge.judge.worker import refuse_reference
from corral.spec import check_timeout

_LOOK_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGate(GateBase):
    """A gate about one file: the artifact itself, or one beside it."""

    file: str | None = None
    max_bytes: int = MAX_BYTES
    """A larger file is not read and does not pass: something could be hidden at its end."""
    timeout: float = _LOOK_SECONDS

    def __post_init__(self) -> None:
        GateBase.__post_init__(self)
        check_timeout(self.timeout, what="timeout", error=SpecError)

    async def objection(self, work: Work, bench: Bench) -> str | None:
        try:
            content, whole = work.read_start(self.file, max_bytes=self.max_bytes)
        except OSError:
            return work.explain_lack(self.file)
        if not whole:
            return f"{self.file or work.output} has more than {self.max_bytes} bytes"
        try:
            return await self.look(content)
        except OutOfBoundsError as error:
            # The candidate's text is the cause. A failure of the judge would end the contest for all.
            return f"could not be decided: {error}"

    @abstractmethod
    async def look(self, content: bytes) -> str | None:
        """Why this content does not pass; None if it does."""


Patterns = str | re.Pattern[str] | Sequence[str | re.Pattern[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Regex(FileGate):
    """Patterns that must or must not match the text. Python's syntax, with flags in front: `(?im)…`.

    The search runs in its own process, which is killed after `timeout` seconds: for some texts an
    innocent pattern takes years. A candidate with such a text does not pass.
    """

    must: Patterns = field(default=(), kw_only=False)
    must_not: Patterns = ()

    def __post_init__(self) -> None:
        FileGate.__post_init__(self)
        object.__setattr__(self, "must", tuple(_compile(self.must)))
        object.__setattr__(self, "must_not", tuple(_compile(self.must_not)))
        if not self.must and not self.must_not:
            raise SpecError("a gate without a pattern", hint="give must=… or must_not=…")

    async def look(self, content: bytes) -> str | None:
        must, must_not = tuple(_compile(self.must)), tuple(_compile(self.must_not))
        patterns = [(pattern.pattern, pattern.flags) for pattern in (*must, *must_not)]
        answer = await look_apart({"task": "regex", "patterns": patterns}, content, timeout=self.timeout)
        found = set(answer["found"])
        reasons = [f"nothing matches {pattern.pattern!r}" for n, pattern in enumerate(must) if n not in found]
        reasons += [
            f"something matches {pattern.pattern!r}" for n, pattern in enumerate(must_not, len(must)) if n in found
        ]
        return ", ".join(reasons) or None

    def describe_more(self) -> dict[str, Any]:
        return {
            "kind": "regex", "must": [[one.pattern, one.flags] for one in _compile(self.must)],
            "must_not": [[one.pattern, one.flags] for one in _compile(self.must_not)], "file": self.file,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema(FileGate):
    """The artifact is JSON and valid by a JSON Schema (draft 2020-12 unless `$schema` names another).

    Needs the extra `forge`. Checked in its own process, as `Regex` is. Nothing is fetched: a `$ref` must lead into the
    schema itself.

    Raises:
        BackendUnavailableError: the extra is not installed.
        SpecError: not a schema.
    """

    schema: Mapping[str, Any] | bool = field(kw_only=False)

    def __post_init__(self) -> None:
        FileGate.__post_init__(self)
        if not isinstance(self.schema, bool):
            object.__setattr__(self, "schema", dict(self.schema))
        _check_schema(self.schema)

    async def look(self, content: bytes) -> str | None:
        answer = await look_apart({"task": "schema", "schema": self.schema}, content, timeout=self.timeout)
        return "; ".join(answer["problems"]) or None

    def describe_more(self) -> dict[str, Any]:
        text = json.dumps(self.schema, sort_keys=True)
        return {"kind": "schema", "schema": self.schema, "sha256": hash_text(text), "file": self.file}


def _compile(patterns: Patterns) -> Iterable[re.Pattern[str]]:
    for pattern in (patterns,) if isinstance(patterns, str | re.Pattern) else patterns:
        try:
            found = re.compile(pattern)
        except (re.error, TypeError, RecursionError) as error:
            raise SpecError(f"{pattern!r} is not a regular expression", hint=f"Python says: {error}") from error
        if not isinstance(found.pattern, str):
            raise SpecError(f"{pattern!r} is a pattern for bytes", hint="give one for text")
        yield found


def _check_schema(schema: object) -> None:
    try:
        import jsonschema_rs
    except ImportError as error:
        raise BackendUnavailableError(
            "the gate `Schema` needs jsonschema-rs, which is not installed", hint="pip install 'corral[forge]'"
        ) from error

    try:
        json.dumps(schema, allow_nan=False)
        jsonschema_rs.validator_for(schema, retriever=refuse_reference)  # type: ignore[arg-type] # it decides itself
    except (ValueError, TypeError, RecursionError) as error:
        raise SpecError(
            f"not a JSON Schema: {str(error).partition(chr(10))[0][:300]}", hint="see json-schema.org"
        ) from error
