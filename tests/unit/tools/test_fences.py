"""Fences as models write them; each row is one that a regular expression for the plain case misses, or gets wrong."""

import pytest

from corral.tools.fences import Block, find_blocks, guess_language


def languages_and_code(text: str) -> list[tuple[str, str]]:
    return [(block.language, block.code) for block in find_blocks(text)]


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("no code here", []),
        ("```python\nprint(1)\n```", [("python", "print(1)")]),
        ("``` python\nprint(1)\n```", [("python", "print(1)")]),
        ('```python title="a.py"\nprint(1)\n```', [("python", "print(1)")]),
        ("```{.python .numberLines}\nprint(1)\n```", [("python", "print(1)")]),
        ("```python:main.py\nprint(1)\n```", [("python", "print(1)")]),
        ("```c++\nint x;\n```", [("c++", "int x;")]),
        ("```objective-c\nid x;\n```", [("objective-c", "id x;")]),
        ("~~~bash\nls\n~~~", [("bash", "ls")]),
        ("~~~bash\n```\n~~~", [("bash", "```")]),
        ("````python\nprint('''\n```\n''')\n````", [("python", "print('''\n```\n''')")]),
        ("```python\n```", [("python", "")]),
        ("```python\n\n```", [("python", "")]),
        ("```\n```", [("", "")]),
        ("```python\r\nprint(1)\r\n```\r\n", [("python", "print(1)")]),
        ("1. do\n   ```python\n   if 1:\n       print(1)\n   ```\n", [("python", "if 1:\n    print(1)")]),
        ("```python\na\n`````\n```sh\nb\n```", [("python", "a"), ("sh", "b")]),
        ("```python\nprint(1)\n``` and then\nprint(2)\n```", [("python", "print(1)\n``` and then\nprint(2)")]),
        ("```python\nx = 'a\x0cb\u2028c'\n```", [("python", "x = 'a\x0cb\u2028c'")]),
        ("```python print(1)``` in one line", []),
        ("```python\nprint(1)", []),
        ("```python\nx\n~~~", []),
        (
            "```markdown\nfirst\n```python\nprint(1)\n```\nlast\n```\n```sh\nls\n```",
            [("markdown", "first\n```python\nprint(1)\n```\nlast"), ("sh", "ls")],
        ),
    ],
)
def test_blocks(text: str, blocks: list[tuple[str, str]]) -> None:
    assert languages_and_code(text) == blocks


def test_info_string_is_kept_whole() -> None:
    assert find_blocks("```python {1,3} title=x\npass\n```") == [Block("python", "pass", "python {1,3} title=x")]


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("print(1)", "python"),
        ("pip install x", "sh"),
        ("python3 a.py", "sh"),
        ("for x in; do", ""),
        ("", ""),
        ("\0", ""),
        ("x = '\\d'", "python"),
    ],
)
def test_language_is_guessed(code: str, language: str) -> None:
    assert guess_language(code) == language


def test_long_text_takes_no_time_beyond_its_length() -> None:
    text = "`" * 200_000 + "\n" + "~~~x\n" * 50_000
    assert find_blocks(text) == []
