"""docs/texts.md is what the source says, and texts that other programs match are still there."""

from support import texts


def test_published_texts_are_those_of_the_source() -> None:
    assert texts.PAGE.read_text(encoding="utf-8") == texts.write(), "the texts have changed: run tools/texts"


def test_texts_that_other_programs_match_are_there() -> None:
    source = "\n".join(texts.list_literals())
    assert [part for part in texts.FIXED if part not in source] == []
