"""The published texts, collected from the source: errors with their hints, the command line, and the OpenAPI document.

Errors and what commands print are read from the syntax tree: a placeholder shows as `{…}`, and names that hold a
literal are followed within their module. An argument with a space is a message or a hint; a single word is a code,
unless it stands alone. Of a table of errors, each entry is printed. Help comes from click, and the OpenAPI texts from
the document itself.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator

import click

from corral.cli.root import root
from corral.server.openapi import document
from support.project import ROOT, SOURCE

PAGE = ROOT / "docs" / "texts.md"

FIXED = {
    "already exists": "clients of Daytona look for it in the message of a 409",
    "rate limit exceeded": "clients of Daytona look for it in the message of a 429",
    "Daytona rate limit exceeded": "AG2's DaytonaCodeExecutor and DaytonaEnvironment",
    "Daytona sandbox creation timed out": "AG2's DaytonaCodeExecutor",
    "Failed to create Daytona sandbox": "AG2's DaytonaCodeExecutor",
    "Docker API error": "AG2's DockerCodeEnvironment",
    "Execution timed out": "AG2's executors and environments; Dream Foundry's runner",
    "Unsupported language": "AG2's DaytonaCodeExecutor",
    "No LanguageRunner registered for language": "AG2's CodeEnvironment",
    "is not enabled. Available:": "AG2's CodeEnvironment",
    "given as Variable but no Context available to resolve": "AG2's DaytonaEnvironment",
    "must be a concrete value; got Variable. Wrap with": "AG2's DaytonaSandbox",
    "not found and no default provided": "AG2's resolve_variable",
    "has been closed.": "AG2's sandboxes and environments",
    "`timeout` must be": "AG2's environments",
    "`runners` only applies when": "AG2's SandboxCodeTool",
    "[truncated: showing first": "AG2's LocalSandbox",
    "Error: Command timed out after": "pydantic-ai-backend's sandboxes",
    "String not found in file": "pydantic-ai-backend's edit",
    "times. Use replace_all=True to replace all": "pydantic-ai-backend's edit",
    "Failed to edit file": "pydantic-ai-backend's edit",
    "File not found: ": "pydantic-ai-backend's read",
    "more lines. Use offset=": "pydantic-ai-backend's read",
    "No files matching": "pydantic-ai-backend's console toolset",
    "No matches for": "pydantic-ai-backend's console toolset",
    "Hash mismatch at line": "pydantic-ai-backend's hashline edit",
    "out of range (file has": "pydantic-ai-backend's hashline edit",
    "end_line/end_hash cannot be combined with insert_after": "pydantic-ai-backend's hashline edit",
    "Daytona API key not configured": "Dream Foundry's runner",
    "Daytona SDK not installed": "Dream Foundry's runner",
}
"""Parts of texts that other programs match, or that users of the replaced programs know, with whose they are."""

HEAD = """# Published texts

Every error message with its hint (after the arrow; the entries of a table of errors after their keys), every help text
and message of the command line (an option once, at the first command that has it), and the texts of the OpenAPI
document. Written by `tools/texts` from the source; a test compares. After a merge, run `tools/texts`.

`{…}` is a value. Texts marked `[fixed]` contain a part that other programs match: it must stay as it is.
"""

_ECHO = ("echo", "secho", "note", "say")


def is_fixed(text: str) -> bool:
    """Whether the text contains a part that other programs match."""
    return any(part in text for part in FIXED)


Known = dict[str, ast.expr]
"""The literals that names hold at a place of the source."""


class Module:
    """One module, with the calls in it and the literals that are known at each."""

    def __init__(self, source: bytes) -> None:
        tree = ast.parse(source)
        self.raised = {id(node.exc) for node in ast.walk(tree) if isinstance(node, ast.Raise)}
        constants = {name: value for each in tree.body for name, value in _list_assigned(each)}
        self.found = list(_walk_block(tree.body, constants))


def _list_assigned(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """The names that a statement assigns, each with its value."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    if isinstance(target, ast.Name):
        yield target.id, statement.value
    elif isinstance(target, ast.Tuple):
        unknown: list[ast.expr] = [ast.Constant(None)] * len(target.elts)
        values = statement.value.elts if isinstance(statement.value, ast.Tuple) else unknown
        for name, value in zip(target.elts, values, strict=True):
            if isinstance(name, ast.Name):
                yield name.id, value


def _walk_block(block: list[ast.stmt], known: Known) -> Iterator[tuple[ast.AST, Known]]:
    """Every node of a block, in order. What is assigned in a branch is known after it, unless the branch leaves."""
    for statement in block:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement, known
            for decorator in statement.decorator_list:
                yield from ((node, known) for node in ast.walk(decorator))
            own = {"__class__": ast.Constant(statement.name)} if isinstance(statement, ast.ClassDef) else {}
            yield from _walk_block(statement.body, {**known, **own})
            continue
        branches = list(_list_branches(statement))
        inside = {id(node) for branch in branches for each in branch for node in ast.walk(each)}
        yield from ((node, dict(known)) for node in ast.walk(statement) if id(node) not in inside)
        ends = []
        for branch in branches:
            end = dict(known)
            yield from _walk_block(branch, end)
            if branch and not isinstance(branch[-1], ast.Return | ast.Raise | ast.Continue | ast.Break):
                ends.append(end)
        for name in {name for end in ends for name in end}:
            values = list({id(end[name]): end[name] for end in (known, *ends) if name in end}.values())
            known[name] = values[0] if len(values) == 1 else ast.BoolOp(op=ast.Or(), values=values)
        known.update(_list_assigned(statement))


def _list_branches(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for each in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield each.body


def read_text(node: ast.expr | None, known: Known) -> str | None:
    """A string expression with its placeholders as `{…}`; None if there is no literal text in it."""
    text = _render(node, known, 4)
    return " ".join(text.split()) if text is not None and re.search(r"[a-zA-Z]{2}", text.replace("{…}", "")) else None


def _render(node: ast.expr | None, known: Known, depth: int) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_render(value, known, depth) or "{…}" for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = _render(node.left, known, depth), _render(node.right, known, depth)
        return None if parts == (None, None) else "".join(part or "{…}" for part in parts)
    if isinstance(node, ast.IfExp):
        parts = _render(node.body, known, depth), _render(node.orelse, known, depth)
        return " | ".join(part or "{…}" for part in parts) if any(parts) else None
    if isinstance(node, ast.BoolOp):
        choices = [_render(value, known, depth) for value in node.values]
        return " | ".join(choice or "{…}" for choice in choices) if any(choices) else None
    if isinstance(node, ast.Name) and depth and node.id in known:
        return _render(known[node.id], {**known, node.id: ast.Constant(None)}, depth - 1)
    return None


def _get_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def list_literals() -> Iterator[str]:
    """Every string of the source, with placeholders."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Constant | ast.JoinedStr) and (text := _render(node, {}, 0)):
                yield text


def list_errors(module: Module) -> Iterator[str]:
    """The messages of errors that a module makes, as `Class: message → hint`."""
    for node, known in module.found:
        if isinstance(node, ast.Dict):
            yield from _list_table(node, known)
        if not isinstance(node, ast.Call):
            continue
        name = _get_name(node.func)
        if name == "__init__":
            name = ast.literal_eval(known["__class__"])
        hint = next((read_text(each.value, known) for each in node.keywords if each.arg == "hint"), None)
        if not (name.endswith(("Error", "Exception", "Fault")) or id(node) in module.raised or hint):
            continue
        found = [text for each in node.args if (text := read_text(each, known))]
        texts = [text for text in found if " " in text or len(node.args) == 1]
        if texts or hint:
            yield " → ".join((f"{name}: {texts[0] if texts else '{…}'}", *texts[1:], *([hint] if hint else [])))


def _list_table(table: ast.Dict, known: Known) -> Iterator[str]:
    """The errors in a dict: an answer with the keys `error` and `text`, or rows that end with a text."""
    keys = ["" if key is None else read_text(key, known) or ast.unparse(key) for key in table.keys]
    rows = dict(zip(keys, table.values, strict=True))
    if "error" in rows and (text := read_text(rows.get("text"), known)):
        yield f"{read_text(rows['error'], known) or '{…}'}: {text}"
    for key, row in rows.items():
        texts = [read_text(each, known) or "" for each in row.elts] if isinstance(row, ast.Tuple) else []
        if texts and " " in texts[-1]:
            yield f"{key}: {' → '.join(text for text in texts if ' ' in text)}"


def list_prints(module: Module) -> Iterator[str]:
    """What a module of the command line prints."""
    for node, known in module.found:
        if isinstance(node, ast.Call) and _get_name(node.func) in _ECHO:
            yield from (text for each in node.args if (text := read_text(each, known)))


def list_help(command: click.Command, path: str) -> Iterator[tuple[str, list[str]]]:
    """The help of a command and its options, and of the commands below it."""
    options = [each for each in command.params if isinstance(each, click.Option) and each.help]
    yield path, [*(command.help or "").split("\n"), *(f"{max(each.opts, key=len)}: {each.help}" for each in options)]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from list_help(below, f"{path} {name}")


def list_openapi() -> Iterator[str]:
    """The summaries of the operations, and every other description of the document once."""
    page = json.loads(document("0"))
    others: set[str] = set()
    for path, operations in page["paths"].items():
        for method, operation in operations.items():
            yield f"{method.upper()} {path}: {operation.get('summary', '')}"
            others.update(
                f"{status}: {answer['description']}" for status, answer in operation.get("responses", {}).items()
            )
    yield from (f"answer {each}" for each in sorted(others))
    for name, schema in sorted(page["components"]["schemas"].items()):
        if text := schema.get("description"):
            yield f"model {name}: {' '.join(text.split())}"


def _write_block(title: str, texts: list[str]) -> list[str]:
    shown = [f"[fixed] {text}" if is_fixed(text) else text for text in dict.fromkeys(texts)]
    return [f"### {title}", "", "```text", *(each.replace("```", "'''") for each in shown), "```", ""]


def write() -> str:
    """The whole page."""
    modules = {path.relative_to(SOURCE).as_posix(): Module(path.read_bytes()) for path in sorted(SOURCE.rglob("*.py"))}
    lines = [HEAD, "## Errors", ""]
    for name, module in modules.items():
        if not name.startswith("testing/") and (texts := list(list_errors(module))):
            lines += _write_block(name, texts)
    lines += ["## Command line", ""]
    shown: set[str] = set()
    for path, texts in list_help(root, "corral"):
        new = [text.strip("\b ") for text in texts if text.strip("\b ") and text not in shown]
        shown.update(text for text in texts if text.startswith("--"))
        lines += _write_block(path, new)
    for name, module in modules.items():
        if name.startswith("cli/") and (texts := list(list_prints(module))):
            lines += _write_block(f"{name} prints", texts)
    lines += ["## OpenAPI", "", *_write_block("openapi.json", list(list_openapi()))]
    lines += ["## Texts that other programs match", "", "| part of a text | matched by |", "|---|---|"]
    lines += [f"| `` {part.strip()} `` | {reason} |" for part, reason in sorted(FIXED.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(write())
