"""What a model is told about each console tool."""

from __future__ import annotations

DESCRIPTIONS = {
    "ls": """\
List the files and folders in a folder, with sizes.

To find files by name anywhere below a folder, use `glob`.""",
    "read_file": """\
Read a text file; lines come with their numbers, as from `cat -n`. Images are shown as images.

Read a file before you edit it. Of a long file, read the part you need with `offset` and `limit`.""",
    "read_file:hashline": """\
Read a text file; each line comes as `number:hash|content`. Images are shown as images.

Read a file before you edit it: `hashline_edit` needs the number and the hash of a line. Of a long file, read the part
you need with `offset` and `limit`.""",
    "write_file": """\
Write a whole file; folders on the way are made. What was in the file is lost.

For new files and complete rewrites. To change a part of a file, edit it instead.""",
    "edit_file": """\
Replace a text in a file; everything else in it stays as it is.

`old_string` must be there exactly as given, spaces and line breaks included, and exactly once unless `replace_all` is
set. If it is there more often, give more of the text around it.""",
    "hashline_edit": """\
Edit lines of a file by their numbers and hashes, as `read_file` shows them.

Replace one line, or with `end_line` and `end_hash` several; delete with an empty `new_content`; insert with
`insert_after`. If a hash does not match, the file has changed: read it again. Make several edits from the bottom up, so
that the numbers above stay right.""",
    "glob": """\
Find files by a pattern: `*` matches within a name, `**` crosses folders, `{a,b}` is one or the other.

A name without a folder, such as `*.py`, is found at any depth.""",
    "grep": """\
Search the contents of files for a regular expression.

`output_mode` gives the files that match (the default), the lines with their numbers (`content`), or how many there are
(`count`).""",
    "execute": """\
Run a shell command in the working folder and get what it prints.

For running programs, tests and builds. To read, write, find and search files, use the other tools. Commands that depend
on each other go into one call with `&&`. Of a long output only the beginning is shown: write it to a file, and read
that. After `timeout` seconds the command and all it started are ended.""",
}
