"""Large answers in slices: the same bytes, and never much at once."""

import json

import msgspec
import pytest

from corral.server.answers import LongText, joined, slices
from corral.server.fairness import SLICE_BYTES, is_large
from corral.server.wire.toolbox import Artifacts, CodeRunResponse, FileInfo, Session

LONG = 'ä\x01"\\\n' * 40_000
FILE = FileInfo(
    name="a", is_dir=False, size=1, mode="-", mod_time="x", owner="o", group="g", permissions="0644", modified_at="x",
    path="/a",
)  # fmt: skip
CHART = {"type": "line", "title": None, "elements": [{"points": [[n, n / 2] for n in range(5000)], "label": LONG}]}


@pytest.mark.parametrize(
    "value",
    [
        LONG,
        [FILE] * 1000,
        {"a": {"b": [1.5, None, True, LONG]}, "c": []},
        CodeRunResponse(exit_code=0, result=LONG, artifacts=Artifacts(charts=[CHART, CHART])),
        CodeRunResponse(exit_code=-1, result=LONG),
        Session(session_id="s", commands=[]),
    ],
)
def test_slices_are_what_the_encoder_gives(value: object) -> None:
    pieces = list(joined(slices(value)))
    assert b"".join(pieces) == msgspec.json.encode(value)
    assert max(map(len, pieces)) < 8 * SLICE_BYTES
    assert is_large(value) == (not isinstance(value, Session))


def test_long_text_is_decoded_on_its_way() -> None:
    data = "é".encode() * 100_000 + b"\xff\x01"
    cut = [data[:99_999], data[99_999:]]  # in the middle of a character
    answer = CodeRunResponse(exit_code=3, result="")
    told = json.loads(b"".join(slices(answer, {"result": LongText(cut)})))
    assert told == {"exitCode": 3, "result": data.decode("utf-8", "replace")}
