"""The OpenAPI document, made from the same table of routes that requests are dispatched by."""

from __future__ import annotations

import functools
import re
from http import HTTPStatus
from typing import Any

import msgspec

from corral.server.routing import Route
from corral.server.tables import all_routes
from corral.server.wire.base import Answer
from corral.server.wire.control import ErrorResponse

REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)\}")
_NUMBERS = frozenset({"interval", "ttlMinutes", "port"})
_JSON = "application/json"


@functools.cache
def document(version: str) -> bytes:
    """The document, as JSON."""
    routes = list(all_routes())
    kinds = _kinds(route for _, route in routes)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REF)
    for kind in Answer.__subclasses__():
        properties = components[kind.__name__]["properties"]
        components[kind.__name__]["required"] = list(properties)
        for each in properties.values():
            each.pop("default", None)  # for us, who make the answers; clients must not make any up
    by_kind = {repr(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for path, route in routes:
        paths.setdefault(path, {})[route.method.lower()] = _operation(path, route, by_kind, components)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Corral", "version": version},
            "paths": paths,
            "components": {
                "schemas": components,
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _kinds(routes: Any) -> list[Any]:
    """All models, each once: types such as unions can't be compared, so by their names."""
    found: dict[str, Any] = {repr(ErrorResponse): ErrorResponse}
    for route in routes:
        for kind in (route.query, route.body, *route.answers.values()):
            if kind is not None:
                found.setdefault(repr(kind), kind)
    return list(found.values())


def _operation(path: str, route: Route, by_kind: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.area],
        "parameters": [*_path_parameters(path), *_query_parameters(route, by_kind, components)],
        "responses": _responses(route, by_kind),
        "x-scope": route.scope,
    }
    if route.area != "open":
        operation["security"] = [{"key": []}, {}] if route.signed else [{"key": []}]
    if route.body is not None:
        content = {_JSON: {"schema": by_kind[repr(route.body)]}}
        operation["requestBody"] = {"required": not route.body_optional, "content": content}
    elif route.raw_body:
        schema = {"type": "object", "additionalProperties": {"type": "string", "format": "binary"}}
        operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    if route.websocket:
        operation["x-websocket"] = True
    return operation


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer"} if name in _NUMBERS
            else {"type": "boolean"} if name == "isPublic" else {"type": "string", "minLength": 1},
        }
        for name in _PARAMETER.findall(path)
    ]  # fmt: skip


def _query_parameters(route: Route, by_kind: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    schema = components[by_kind[repr(route.query)]["$ref"].rpartition("/")[2]]
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _without_null(each)}
        for name, each in schema["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Without `null`, which a query can't express: a key is given, or it is not."""
    schema = {name: value for name, value in schema.items() if name != "default" or value is not None}
    if "anyOf" in schema:
        kept = [each for each in schema["anyOf"] if each != {"type": "null"}]
        rest = {name: value for name, value in schema.items() if name != "anyOf"}
        return {**rest, **kept[0]} if len(kept) == 1 else {**rest, "anyOf": kept}
    return schema


def _responses(route: Route, by_kind: dict[str, Any]) -> dict[str, Any]:
    error = {"description": "Error", "content": {_JSON: {"schema": by_kind[repr(ErrorResponse)]}}}
    responses: dict[str, Any] = {"default": error}
    for status, kind in route.answers.items():
        response: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        if kind is not None and kind is not bytes:
            response["content"] = {_JSON: {"schema": by_kind[repr(kind)]}}
        elif kind is bytes:
            response["content"] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        responses[str(status)] = response
    if route.websocket:
        responses["101"] = {"description": HTTPStatus(101).phrase}
    return responses
