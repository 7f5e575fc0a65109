"""The known functions for editing by line and hash, with the known two digits."""

from __future__ import annotations

from corral.tools.hashline import apply_hashline_edit, edit_lines, format_hashline, line_hash

__all__ = ["apply_hashline_edit", "apply_hashline_edit_with_summary", "format_hashline_output", "line_hash"]


def format_hashline_output(content: str, offset: int = 0, limit: int = 2000) -> str:
    """The lines from `offset` on, at most `limit`, each as `number:hash|content`."""
    return format_hashline(content, offset, limit)


def apply_hashline_edit_with_summary(
    content: str,
    start_line: int,
    start_hash: str,
    new_content: str,
    end_line: int | None = None,
    end_hash: str | None = None,
    insert_after: bool = False,  # noqa: FBT001, FBT002 - the known signature
) -> tuple[str, str | None, str]:
    """The new content and None, or the old content and what was wrong; and what was done."""
    done = edit_lines(
        content,
        start_line,
        start_hash,
        new_content,
        end_line=end_line,
        end_hash=end_hash,
        insert_after=insert_after,
    )
    return done.content, done.error, done.summary
