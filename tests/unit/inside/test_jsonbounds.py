"""Hostile JSON, bounded before it is parsed."""

import json

import pytest

from corral.inside.jsonbounds import count_values, outside_texts
from corral.sessions.interpreter.chartdata import MAX_CHARTS, MAX_CHARTS_BYTES, parse_charts
from corral.sessions.interpreter.frames import MAX_ITEMS, parse_json

LINE = {"type": "line", "title": "t", "elements": [{"label": "l", "points": [[1, 2]]}]}


@pytest.mark.parametrize("text", ["a,[{", 'say \\"hi\\", [twice]', "\\\\", 'ends with a backslash \\\\", "not'])
def test_what_stands_in_texts_does_not_count(text: str) -> None:
    data = json.dumps({"key": json.loads(f'"{text}"') if "not" not in text else text}).encode()
    found = outside_texts(data, max_texts=10)
    assert found == (2, b"{: }")
    assert count_values(b"[" + b'",,,,",' * 50 + b"1]", most=100) == 51


def test_too_many_values_are_not_parsed() -> None:
    assert parse_json(b"[" + b"1," * 1000 + b"1]") is not None
    assert parse_json(b'["' + b"," * (MAX_ITEMS + 1) + b'"]') is not None
    assert parse_json(b"[" + b"{}," * MAX_ITEMS + b"{}]") is None
    assert parse_json(b'["' + b'","' * (2 * MAX_ITEMS + 1) + b'"]') is None


def test_charts_that_are_too_large_are_told_in_their_place() -> None:
    good = json.dumps(LINE).encode()
    many = b'{"type":"line","elements":[' + b"{}," * MAX_ITEMS + b"{}]}"
    charts = list(parse_charts(b"\n".join([good, many, good])))
    assert [chart["type"] for chart in charts] == ["line", "unknown", "line"]
    assert "too many values" in charts[1]["title"]
    cut = list(parse_charts(b"\n".join([good, good[:5]]), cut=True))
    assert [chart["type"] for chart in cut] == ["line", "unknown"]
    assert str(MAX_CHARTS_BYTES) in cut[1]["title"]
    crowd = list(parse_charts(b"\n".join([good] * (MAX_CHARTS + 1))))
    assert len(crowd) == MAX_CHARTS + 1
    assert crowd[-1]["type"] == "unknown"
    assert list(parse_charts(b"\n".join([good] * MAX_CHARTS) + b"\n"))[-1]["type"] == "line"


def test_charts_are_held_only_as_far_as_it_is_allowed() -> None:
    good = json.dumps(LINE).encode()
    room = [2000]

    def allowance(count: int) -> bool:
        room[0] -= count
        return room[0] >= 0

    charts = list(parse_charts(b"\n".join([good] * 20), allowance=allowance))
    assert len(charts) == 20
    assert {chart["type"] for chart in charts} == {"line", "unknown"}
