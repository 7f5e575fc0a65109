"""docs/texts.md is what the source says, and texts that other programs match are still there."""

from support import texts


def _collect(source: str) -> list[str]:
    return list(texts.list_errors(texts.Module(source.encode())))


def test_published_texts_are_those_of_the_source() -> None:
    assert texts.PAGE.read_text(encoding="utf-8") == texts.write(), "the texts have changed: run tools/texts"


def test_texts_that_other_programs_match_are_there() -> None:
    source = "\n".join(texts.list_literals())
    assert [part for part in texts.FIXED if part not in source] == []


def test_collector_prints_the_message_and_not_the_code_before_it() -> None:
    assert _collect("raise RefusedError('no_match', 0, 'the text is missing', count=0)") == [
        "RefusedError: the text is missing"
    ]
    assert _collect("raise unsupported('volumes')") == ["unsupported: volumes"]
    assert _collect("raise refuse('score', error)") == []


def test_collector_finds_texts_in_a_table() -> None:
    table = "_SHORT: Final = {EMFILE: ('no descriptors are left', 'close some')}\nraise Shortage(*_SHORT[number])"
    assert _collect(table) == ["EMFILE: no descriptors are left → close some"]
    assert _collect("refuse_given('docker', {'venv': (spec.venv, 'build an image')})") == ["venv: build an image"]
    assert _collect("return {'error': 'gone', 'text': f'no sandbox {name}'}") == ["gone: no sandbox {…}"]


def test_collector_finds_texts_assigned_before_the_raise() -> None:
    assert _collect("text: str = 'the disk is full'\nraise DiskError(text)") == ["DiskError: the disk is full"]
    branches = "if shrinks:\n  text, hint = 'it can not shrink', 'snapshot it'\n"
    branches += "else:\n  text, hint = 'it can not grow', 'stop it'\nraise DiskError(text, hint=hint)"
    assert _collect(branches) == ["DiskError: it can not shrink | it can not grow → snapshot it | stop it"]
