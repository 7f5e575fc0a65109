"""From a path to a route: a tree of segments, in which a fixed name goes before a parameter."""

from __future__ import annotations

from dataclasses import dataclass, field

from corral.server.routing import Route


@dataclass(slots=True)
class _Node:
    fixed: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None
    routes: dict[str, tuple[Route, tuple[str, ...]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Match:
    """A route and what stood in place of its parameters; or the methods that the path has instead."""

    route: Route | None
    params: dict[str, str]
    allowed: tuple[str, ...] = ()


class Router:
    """All routes of an app."""

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, path: str, route: Route) -> None:
        """A route at a path; of two at the same one, the first stays."""
        node = self._root
        names = []
        for segment in filter(None, path.split("/")):
            if segment.startswith("{"):
                names.append(segment.strip("{}"))
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.fixed.setdefault(segment, _Node())
        node.routes.setdefault(route.method, (route, tuple(names)))

    def find(self, method: str, segments: tuple[str, ...]) -> Match | None:
        """The route for a request; None if there is nothing at that path."""
        allowed: list[str] = []
        stack: list[tuple[_Node, int, tuple[str, ...]]] = [(self._root, 0, ())]
        while stack:
            node, at, values = stack.pop()
            if at == len(segments):
                found = node.routes.get(method)
                if found is not None:
                    route, names = found
                    return Match(route, dict(zip(names, values, strict=True)))
                allowed.extend(node.routes)
                continue
            segment = segments[at]
            if node.parameter is not None:
                stack.append((node.parameter, at + 1, (*values, segment)))
            if segment in node.fixed:
                stack.append((node.fixed[segment], at + 1, values))
        return Match(None, {}, tuple(sorted(set(allowed)))) if allowed else None
