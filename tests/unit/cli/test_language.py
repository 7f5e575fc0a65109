"""Which language a file is written in."""

import pytest

from corral.cli.language import guess_language


@pytest.mark.parametrize(
    ("name", "source", "language"),
    [
        ("a.py", b"", "python"),
        ("a.sh", b"", "bash"),
        ("a.mjs", b"", "javascript"),
        ("a.TS", b"", "typescript"),
        ("a", b"", "python"),
        ("a.unknown", b"", "python"),
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
def test_language_of_a_file(name: str, source: bytes, language: str) -> None:
    assert guess_language(name, source) == language
