"""The text of `/metrics`, as Prometheus reads it."""

import re

from corral.server.log import Metrics

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf'({NAME})(?:\{{((?:{NAME}="[^"\\\n]*",?)*)\}})? ([0-9.]+)')


def read(text: str) -> dict[str, float]:
    """Samples by name and labels. Each belongs to a family that was announced, whole, before it."""
    assert text.endswith("\n")
    samples: dict[str, float] = {}
    families: list[str] = []
    for line in text.splitlines():
        if line.startswith("# "):
            word, name = line.split()[1:3]
            if word == "HELP":
                assert name not in families
                families.append(name)
            else:
                assert (word, name) == ("TYPE", families[-1])
            continue
        found = SAMPLE.fullmatch(line)
        assert found is not None, line
        assert re.sub("_(bucket|sum|count)$", "", found[1]) == families[-1]
        key = f"{found[1]}{{{found[2] or ''}}}"
        assert key not in samples
        samples[key] = float(found[3])
    return samples


def test_it_is_what_prometheus_reads() -> None:
    metrics = Metrics()
    metrics.sandboxes_made, metrics.in_flight = 3, 1
    for seconds in (0.001, 0.03, 100.0):
        metrics.count(operation="get_sandbox", method="GET", status=200, seconds=seconds)
    seen = read(metrics.render(states={"started": 2, "stopped": 1}, websockets=4))
    assert seen['corral_sandboxes{state="started"}'] == 2
    assert seen["corral_sandboxes_made_total{}"] == 3
    assert seen['corral_requests_total{operation="get_sandbox",method="GET",status="200"}'] == 3
    buckets = [value for key, value in seen.items() if key.startswith("corral_request_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert (buckets[0], buckets[-2], buckets[-1]) == (1, 2, 3)
    assert seen['corral_request_seconds_sum{operation="get_sandbox"}'] == 100.031
    assert seen['corral_request_seconds_count{operation="get_sandbox"}'] == 3


def test_methods_that_somebody_makes_up_are_counted_together() -> None:
    metrics = Metrics()
    for number in range(1000):
        metrics.count(operation="none", method=f"M{number}", status=405, seconds=0.001)
    seen = read(metrics.render(states={}, websockets=0))
    assert seen['corral_requests_total{operation="none",method="other",status="405"}'] == 1000
    assert len(metrics._requests) == 1
