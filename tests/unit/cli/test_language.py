"""Which language a file is written in."""

import pytest

from corral.cli.runfile import explain_unknown, guess_language


@pytest.mark.parametrize(
    ("name", "source", "language"),
    [
        ("a.py", b"", "python"),
        ("a.sh", b"", "bash"),
        ("a.mjs", b"", "javascript"),
        ("a.TS", b"", "typescript"),
        ("a", b"", None),
        ("a.unknown", b"", None),
        ("a.unknown", b"#!/usr/bin/python3\n", "python"),
        ("a", b"#!/usr/bin/env ruby\n", None),
        ("a.py", b"#!/bin/sh\n", "python"),
        ("a", b"#!/bin/sh\n", "sh"),
        ("a.sh", b"#!/bin/sh\n", "sh"),
        ("a", b"#!/usr/bin/env node\n", "javascript"),
        ("a", b"#!/usr/bin/env -S node --flag\n", "javascript"),
        ("a", b"#!/usr/bin/env -S A=1 python3.12 -u\n", "python"),
        ("a.js", b"#!/opt/strange\n", "javascript"),
        ("a.js", b"#!\n", "javascript"),
        ("a.js", b"#! /usr/bin/env\n", "javascript"),
    ],
)
def test_language_of_a_file(name: str, source: bytes, language: str | None) -> None:
    assert guess_language(name, source) == language


def test_program_without_a_name_is_python_unless_it_says_otherwise() -> None:
    assert guess_language("-", b"print(1)") == "python"
    assert guess_language("-", b"#!/bin/bash\n") == "bash"


def test_unknown_file_is_explained_with_the_option_to_give() -> None:
    assert "'ruby'" in explain_unknown("a", b"#!/usr/bin/env ruby\n")
    for source in (b"", b"#!/usr/bin/env ruby\n"):
        assert "--language" in explain_unknown("a", source)
