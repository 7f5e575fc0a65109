"""Requests made from our own OpenAPI document, good and bad: never a 5xx but the 501 of what is not here.

A few for each operation here; `make fuzz` sets the profile that makes thousands.
"""

import contextlib
import json
import uuid
from collections.abc import Iterator

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis import GenerationMode

from corral.server.openapi import document
from corral.server.tables import all_routes
from support.serving import ServedProcess, make_client, served

SCHEMA = schemathesis.openapi.from_dict(json.loads(document("fuzz")))
ABSENT = {route.name for _, route in all_routes() if 501 in route.answers}
ENDING = {"delete_sandbox", "stop_sandbox", "archive_sandbox", "pause_sandbox", "connect_events"}
"""What would leave the others nothing to work on."""
OPERATIONS = {
    operation.definition.raw["operationId"]: operation
    for operation in (result.ok() for result in SCHEMA.get_all_operations())
}
ALLOWED = (501, 507)
EXAMPLES = max(2, hypothesis.settings.default.max_examples // 25)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServedProcess, str]]:
    """A server of its own, and a sandbox on it."""
    with served(tmp_path_factory.mktemp("fuzzed") / "data") as server:
        box = make_client(server).create()
        yield server, box.id


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - ENDING))
def test_no_request_breaks_it(fuzzed: tuple[ServedProcess, str], name: str) -> None:
    server, sandbox_id = fuzzed
    base = server.url.removesuffix("/api")
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {server.key}"
    operation = OPERATIONS[name]

    @hypothesis.settings(
        max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.given(
        case=hypothesis.strategies.one_of(
            operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
            operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
        ),
        real=hypothesis.strategies.booleans(),
    )
    def ask(case: schemathesis.Case, real: bool) -> None:
        for parameter in ("sandboxId", "sandboxIdOrName"):
            if parameter in (case.path_parameters or {}) and real:
                case.path_parameters[parameter] = sandbox_id
        if name == "create_sandbox" and isinstance(case.body, dict):
            case.body["ttlMinutes"] = 1
        arguments = case.as_transport_kwargs(base_url=base)
        arguments.pop("cookies", None)
        headers = {key: value for key, value in (arguments.pop("headers", None) or {}).items()
                   if key.lower() not in ("host", "authorization", "content-length")}  # fmt: skip
        try:
            response = session.request(**arguments, headers=headers, timeout=60)
        except (requests.exceptions.InvalidURL, requests.exceptions.InvalidHeader, UnicodeError):
            return  # a request that no client can make
        except requests.exceptions.ReadTimeout:
            pytest.fail(f"no answer: {case.method} {case.formatted_path} {case.query} {case.body!r}")
        # A repository's address may be one that only ssh finds to be wrong.
        is_remotes_fault = response.status_code == 502 and "GIT_TRANSPORT_FAILED" in response.text
        assert response.status_code < 500 or response.status_code in ALLOWED or is_remotes_fault, response.text
        if response.status_code == 501:
            assert name in ABSENT or "not supported" in response.text or "can't" in response.text, response.text
        if name == "create_sandbox" and response.status_code == 200:
            session.delete(f"{server.url}/sandbox/{response.json()['id']}", timeout=60)

    ask()
    answer = session.get(f"{server.url}/sandbox/{sandbox_id}", timeout=60)
    assert answer.json()["state"] == "started"
    session.close()


def test_the_server_is_still_there(fuzzed: tuple[ServedProcess, str]) -> None:
    server, _ = fuzzed
    with contextlib.closing(requests.get(server.url.removesuffix("/api") + "/ready", timeout=60)) as response:
        assert response.status_code == 200
    assert uuid.UUID(fuzzed[1])
    assert '"failure"' not in server.log
