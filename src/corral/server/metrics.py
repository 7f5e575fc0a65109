"""Counters for Prometheus, in its text form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
"""Others are counted together: anybody can make methods up, and each would be kept."""
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class Metrics:
    """What happened since the start."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._count: Counter[str] = Counter()
        self.sandboxes_made = 0
        self.in_flight = 0

    def count(self, *, operation: str, method: str, status: int, seconds: float) -> None:
        """One request is done."""
        self._requests[operation, method if method in _METHODS else "other", status] += 1
        self._count[operation] += 1
        self._seconds[operation] += seconds  # type: ignore[assignment] # a Counter of floats is fine
        for bucket in _BUCKETS:
            if seconds <= bucket:
                self._buckets[operation, bucket] += 1

    def render(self, *, states: Mapping[str, int], websockets: int) -> str:
        """The text of `/metrics`."""
        lines = _head("corral_sandboxes", "gauge", "Sandboxes by state.")
        lines += [f'corral_sandboxes{{state="{state}"}} {number}' for state, number in sorted(states.items())]
        for name, kind, text, value in (
            ("corral_sandboxes_made_total", "counter", "Sandboxes created since the start.", self.sandboxes_made),
            ("corral_requests_in_flight", "gauge", "Requests that are being answered.", self.in_flight),
            ("corral_event_listeners", "gauge", "Clients that listen to events.", websockets),
        ):
            lines += [*_head(name, kind, text), f"{name} {value}"]
        lines += _head("corral_requests_total", "counter", "Requests that were answered, by operation and status.")
        lines += [
            f'corral_requests_total{{operation="{operation}",method="{method}",status="{status}"}} {number}'
            for (operation, method, status), number in sorted(self._requests.items())
        ]
        lines += _head("corral_request_seconds", "histogram", "How long requests took, with streams and websockets.")
        for operation in sorted(self._count):
            for bucket in _BUCKETS:
                number = self._buckets[operation, bucket]
                lines.append(f'corral_request_seconds_bucket{{operation="{operation}",le="{bucket}"}} {number}')
            count = self._count[operation]
            lines.append(f'corral_request_seconds_bucket{{operation="{operation}",le="+Inf"}} {count}')
            lines.append(f'corral_request_seconds_sum{{operation="{operation}"}} {self._seconds[operation]:.6f}')
            lines.append(f'corral_request_seconds_count{{operation="{operation}"}} {count}')
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
