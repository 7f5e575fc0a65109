"""The daytona backend without a service: errors at the seam, what is tried again, labels."""

import asyncio
import json
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from corral.backends.daytona import DaytonaBackend, life, seam
from corral.backends.daytona.address import VARIABLES
from corral.backends.daytona.network import network_settings
from corral.backends.daytona.seam import ServiceError, mapped, read, reading, repeat, translate
from corral.errors import (
    BackendError,
    BackendUnavailableError,
    CapabilityError,
    RateLimitedError,
    SandboxGoneError,
    SandboxPausedError,
    SandboxStoppedError,
    SpecError,
)
from corral.spec import Lifetime, NetworkLimits, NetworkPolicy, make_spec


class RawError(Exception):
    """As the generated client raises where the SDK does not translate: `code_run`, snapshots, secrets."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"({status})\nReason: long\nHTTP response headers: …")
        self.status = status
        self.body = body
        self.headers = {"Retry-After": "3"}


class SdkError(Exception):
    """As the SDK raises."""

    def __init__(self, message: str, status_code: int | None) -> None:
        super().__init__(message)
        self.message = message
        self.status_code = status_code
        self.headers: dict[str, str] = {}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, SandboxGoneError),
        (401, BackendUnavailableError),
        (403, BackendUnavailableError),
        (409, SpecError),
        (400, SpecError),
        (422, SpecError),
        (501, CapabilityError),
        (429, RateLimitedError),
        (None, BackendUnavailableError),
        (500, BackendError),
    ],
)
def test_status_becomes_a_class(status: int | None, kind: type[Exception]) -> None:
    for error in (SdkError("words", status), RawError(status or 0, json.dumps({"message": "words"}))):
        with pytest.raises(kind) as caught, mapped(sandbox_id="id", op="exec"), reading():
            raise error
        assert type(caught.value) is kind
        assert "Reason" not in str(caught.value)
        assert caught.value.sandbox_id == "id"  # type: ignore[attr-defined]


def test_raw_exception_is_read_like_the_others() -> None:
    error = read(RawError(408, json.dumps({"message": "too late", "code": "PROCESS_EXECUTION_TIMEOUT"})))
    assert (error.status, error.message, error.code) == (408, "too late", "PROCESS_EXECUTION_TIMEOUT")
    assert error.retry_after == 3.0
    assert read(RawError(502, "<html>")).status == 502


def test_key_is_never_shown() -> None:
    backend = DaytonaBackend(api_key="dtn_secret", api_url="http://127.0.0.1:1/api")
    assert "dtn_secret" not in repr(backend._client.address)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was slept, without sleeping."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(seam.asyncio, "sleep", sleep)
    return slept


def failing(*errors: Exception) -> tuple[Any, list[int]]:
    left, calls = list(errors), [0]

    async def call() -> str:
        calls[0] += 1
        if left:
            raise left.pop(0)
        return "done"

    return call, calls


def test_too_many_requests_is_tried_again_as_the_service_says(pauses: list[float]) -> None:
    call, calls = failing(RawError(429, "{}"), SdkError("slow", 429))
    assert asyncio.run(repeat(call, safe=False)) == "done"
    assert calls == [3]
    assert pauses[0] == 3.0
    assert 0 < pauses[1] < 2


@pytest.mark.parametrize("status", [502, 503, 504, None])
def test_failure_is_tried_again_only_where_that_is_safe(status: int | None, pauses: list[float]) -> None:
    call, calls = failing(SdkError("down", status))
    assert asyncio.run(repeat(call, safe=True)) == "done"
    assert calls == [2]
    call, calls = failing(SdkError("down", status))
    with pytest.raises(ServiceError):
        asyncio.run(repeat(call, safe=False))
    assert calls == [1]


@pytest.mark.parametrize("status", [400, 401, 404, 409, 500, 501])
def test_refusal_is_not_tried_again(status: int, pauses: list[float]) -> None:
    call, calls = failing(SdkError("no", status))
    with pytest.raises(ServiceError):
        asyncio.run(repeat(call, safe=True))
    assert calls == [1]
    assert pauses == []


def test_service_that_stays_away_is_given_up(pauses: list[float]) -> None:
    call, calls = failing(*(SdkError("down", 503) for _ in range(20)))
    with pytest.raises(ServiceError):
        asyncio.run(repeat(call, safe=True))
    assert calls == [5]
    assert len(pauses) == 4


def test_service_that_wants_an_hour_is_not_waited_for(pauses: list[float]) -> None:
    error = RawError(429, "{}")
    error.headers = {"retry-after": "3600"}
    call, calls = failing(error)
    with pytest.raises(ServiceError):
        asyncio.run(repeat(call, safe=True))
    assert (calls, pauses) == ([1], [])


def test_state_says_more_than_a_refusal() -> None:
    kinds = {state: seam.state_error(state, sandbox_id="id", op="exec") for state in
             ("started", "stopped", "archived", "paused", "destroyed", "destroying", None)}  # fmt: skip
    assert kinds["started"] is None
    assert type(kinds["stopped"]) is type(kinds["archived"]) is SandboxStoppedError
    assert type(kinds["paused"]) is SandboxPausedError
    assert type(kinds["destroyed"]) is type(kinds["destroying"]) is type(kinds[None]) is SandboxGoneError


def test_message_of_a_lost_connection_says_where_to_look() -> None:
    error = translate(ServiceError(None, "refused"), sandbox_id=None, op="create")
    assert "DAYTONA_API_URL" in str(error)


# What is written at the service.


def remote(**changes: Any) -> Any:
    values = {"id": "id", "name": "id", "labels": {}, "env": {}, "state": "started", "created_at": None} | changes
    return SimpleNamespace(**values)


def test_spec_survives_its_labels() -> None:
    spec = make_spec(
        labels={"team": "red"}, workdir="/srv/x", exec_timeout=7.5, output_limit_bytes=99,
        lifetime=Lifetime(seconds=100, idle_seconds=30), env={"A": "1"},
    )  # fmt: skip
    labels = life.labels_of(spec, 1e12, name="mine")
    again = life.spec_of(remote(labels=labels, env={"A": "1", "DAYTONA_SANDBOX_ID": "id"}))
    assert (again.labels, again.workdir, again.exec_timeout) == ({"team": "red"}, "/srv/x", 7.5)
    assert (again.output_limit_bytes, again.lifetime.idle_seconds, again.name) == (99, 30, "mine")
    assert dict(again.env) == {"A": "1"}


def test_labels_that_others_wrote_do_no_harm() -> None:
    for wish in ("nonsense", "[]", '{"exec_timeout": "x"}', '{"output_limit_bytes": -1}'):
        spec = life.spec_of(remote(labels={life.OPTIONS: wish, life.DEADLINE: "soon"}))
        assert (spec.exec_timeout, spec.lifetime.seconds) == (None, None)


def test_owned_sandbox_names_its_owner_and_is_private() -> None:
    box = remote(labels=life.owned_labels(make_spec(labels={"a": "b"}), None, mark="m"))
    assert life.is_owned(box)
    assert box.labels[life.OWNER]
    assert life.user_labels(box.labels) == {"a": "b"}
    assert not life.is_owned(remote(labels=life.labels_of(make_spec(), None)))


def test_name_of_a_token_is_the_same_everywhere_and_says_nothing() -> None:
    assert life.token_name("secret-token") == life.token_name("secret-token") != life.token_name("another")
    assert "secret" not in life.token_name("secret-token")
    assert life.name_of(remote(name=life.token_name("x"))) is None
    assert life.name_of(remote(name="given")) == "given"


def test_service_outlives_the_deadline_by_minutes_at_most() -> None:
    assert [life.minutes(seconds) for seconds in (0.5, 60, 61, 3600)] == [2, 2, 3, 61]


# What is refused before the service is asked.


@pytest.mark.parametrize(
    "options", [{"packages": ["six"]}, {"venv": "/x"}, {"ephemeral": True}, {"hostname": "other"},
             {"image": "debian:12", "snapshot": "x"}],
)  # fmt: skip
async def test_option_that_the_service_does_not_support_is_refused(options: dict[str, Any]) -> None:
    backend = DaytonaBackend(api_key="key", api_url="http://127.0.0.1:1/api")
    with pytest.raises(CapabilityError):
        await backend.create(make_spec(**options))


async def test_service_that_is_not_there_is_said(pauses: list[float]) -> None:
    backend = DaytonaBackend(api_key="key", api_url="http://127.0.0.1:1/api")
    with pytest.raises(BackendUnavailableError, match="DAYTONA_API_URL"):
        await backend.connect("x")
    await backend.aclose()


FAILS = """
import asyncio, logging, sys
logging.basicConfig(level=logging.WARNING)
from corral.backends.daytona import DaytonaBackend
from corral.errors import BackendUnavailableError
from corral.spec import Spec

async def main():
    for spec in (Spec(), Spec(client_token="a-token")):
        try:
            await DaytonaBackend(api_key="k", api_url=sys.argv[1]).create(spec)
        except BackendUnavailableError as error:
            assert "can't reach" in str(error), error
asyncio.run(main())
"""


def test_creation_that_nobody_heard_of_warns_of_nothing_and_leaves_nothing_open() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/api"
        done = subprocess.run([sys.executable, "-c", FAILS, url], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


async def test_first_refusal_is_believed_and_a_service_that_was_there_is_waited_for(pauses: list[float]) -> None:
    client = DaytonaBackend(api_key="k", api_url="http://127.0.0.1:1/api")._client
    answers: list[Any] = [ConnectionRefusedError(), "here", ConnectionRefusedError(), "here again"]

    async def call() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise SdkError("no connection", None) from answer
        return str(answer)

    with pytest.raises(ServiceError) as caught:
        await client.repeat(call, safe=True)
    assert (caught.value.unsent, pauses) == (True, [])
    assert await client.repeat(call, safe=True) == "here"
    assert await client.repeat(call, safe=True) == "here again"
    assert len(pauses) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "no API key"),
        ({"api_key": " "}, "no API key"),
        ({"api_key": "two\nlines"}, "contains a character"),
        ({"api_key": "k", "api_url": "localhost:3986"}, "is not the URL"),
        ({"jwt_token": "k"}, "DAYTONA_ORGANIZATION_ID"),
    ],
)
async def test_settings_that_can_not_be_are_not_an_unreachable_service(
    given: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BackendUnavailableError, match=said) as caught:
        await DaytonaBackend(**{"api_url": "http://127.0.0.1:1/api", **given}).create(make_spec())
    assert caught.value.hint
    assert "can't reach" not in str(caught.value)


async def test_missing_sdk_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "daytona", None)
    with pytest.raises(BackendUnavailableError, match=r"pip install 'corral\[daytona\]'"):
        await DaytonaBackend(api_key="key", api_url="http://127.0.0.1:1/api").connect("x")


@pytest.mark.parametrize(("deadline", "handed_out"), [("", True), ("99999999999.0", True), ("1.0", False)])
async def test_sandbox_of_a_token_whose_time_is_over_is_not_handed_out(deadline: str, handed_out: bool) -> None:
    """It may still be there: who made it is just deleting it."""
    found = SimpleNamespace(state="started", labels={life.DEADLINE: deadline} if deadline else {})

    async def get(name: str) -> Any:
        return found

    assert await DaytonaBackend._find_by_token(SimpleNamespace(get=get), "name") is (found if handed_out else None)


# The network.


@pytest.mark.parametrize(
    ("policy", "hosted", "ours"),
    [
        ("none", {"network_block_all": True}, {"network_block_all": True}),
        ([], {"network_block_all": True}, {"network_block_all": True}),
        ("open", {"network_block_all": False}, {"network_block_all": False}),
        ("packages", None, None),
        ("a.org,*.b.org", {"domain_allow_list": "a.org,*.b.org"},
         {"network_allow_list": "", "domain_allow_list": "a.org,*.b.org"}),
        ("9.9.9.0/24", {"network_allow_list": "9.9.9.0/24"},
         {"network_allow_list": "9.9.9.0/24", "domain_allow_list": ""}),
        ("a.org:443", None, None),
        ("2001:db8::/32", None, None),
        (NetworkPolicy("open", ("10.0.0.1",)), None, None),
        (NetworkPolicy("allow", ("a.org",), NetworkLimits(connections=1)), None, None),
    ],
)  # fmt: skip
def test_policy_becomes_the_services_settings_or_is_refused(policy: Any, hosted: Any, ours: Any) -> None:
    for is_ours, expected in ((False, hosted), (True, ours)):
        if expected is None:
            with pytest.raises(CapabilityError):
                network_settings(NetworkPolicy.parse(policy), ours=is_ours)
        else:
            assert network_settings(NetworkPolicy.parse(policy), ours=is_ours) == expected


def test_policy_is_read_from_what_the_service_says() -> None:
    shown = remote(network_block_all=False, network_allow_list="9.9.9.0/24", domain_allow_list="a.org, *.b.org")
    assert life.spec_of(shown).network == NetworkPolicy("allow", ("9.9.9.0/24", "a.org", "*.b.org"))
    assert life.spec_of(remote(network_block_all=True, domain_allow_list="a.org")).network == NetworkPolicy()
