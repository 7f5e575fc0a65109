"""The OpenAPI document: it says what the table of routes says, and stands by itself."""

import json
import re
from typing import Any

import schemathesis

from corral.server.openapi import document
from corral.server.tables import all_routes
from server.conftest import InProcess

DOCUMENT = json.loads(document("1.2.3"))


def every(value: Any) -> list[Any]:
    """A value and all that is in it."""
    found = [value]
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        found += every(inner)
    return found


def test_every_route_is_described_once() -> None:
    described = {
        (method.upper(), path): operation
        for path, operations in DOCUMENT["paths"].items()
        for method, operation in operations.items()
    }
    assert set(described) == {(route.method, path) for path, route in all_routes()}
    names = [operation["operationId"] for operation in described.values()]
    assert len(names) == len(set(names))
    for (_, path), operation in described.items():
        assert operation["summary"], path
        named = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
        assert named == set(re.findall(r"\{(\w+)\}", path))


def test_every_reference_leads_somewhere() -> None:
    references = {value["$ref"] for value in every(DOCUMENT) if isinstance(value, dict) and "$ref" in value}
    assert references
    for reference in references:
        assert reference.removeprefix("#/components/schemas/") in DOCUMENT["components"]["schemas"]


def test_what_is_required_has_no_default() -> None:
    """Else a client that is generated from it makes up what the server must send."""
    made_up = [
        f"{name}.{field}"
        for name, schema in DOCUMENT["components"]["schemas"].items()
        for field in schema.get("required", ())
        if "default" in schema["properties"][field]
    ]
    assert made_up == []


def test_others_can_read_it() -> None:
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    assert len(list(schema.get_all_operations())) == len(list(all_routes()))


async def test_it_is_served_without_a_key(in_process: InProcess) -> None:
    async with in_process.session.get(in_process.url + "/openapi.json") as response:
        assert response.status == 200
        assert (await response.json())["info"]["title"] == "Corral"
