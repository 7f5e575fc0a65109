"""RUN IN ITS OWN PROCESS: checks text that can make a check take for ever, so that the process can be killed.

Started as a script, so it imports nothing of Corral. Standard input is one line of JSON, which says what to do, and
then the bytes to check. An empty line says that everything was read and the check begins; the answer is one line of
JSON.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

_MAX_PROBLEMS = 5
_MAX_PROBLEM_CHARACTERS = 300


def main() -> None:
    """Do one task and write one answer."""
    task = json.loads(sys.stdin.buffer.readline())
    _limit(memory_bytes=task["memory_bytes"], cpu_seconds=task["cpu_seconds"])
    data = sys.stdin.buffer.read()
    sys.stdout.write("\n")
    sys.stdout.flush()
    answer = {"regex": search, "schema": validate}[task["task"]](task, data)
    sys.stdout.write(json.dumps(answer) + "\n")


def search(task: dict[str, Any], data: bytes) -> dict[str, Any]:
    """Which of the patterns are in the text, by their numbers."""
    text = data.decode("utf-8", "replace")
    return {
        "found": [number for number, (pattern, flags) in enumerate(task["patterns"]) if re.search(pattern, text, flags)]
    }


def validate(task: dict[str, Any], data: bytes) -> dict[str, Any]:
    """The problems of a document; empty if it is valid."""
    import jsonschema_rs

    try:
        document = json.loads(data.decode("utf-8"), parse_constant=refuse_constant)
    except RecursionError:
        return {"problems": ["not JSON: nested too deeply"]}
    except ValueError as error:
        return {"problems": [f"not JSON: {error}"[:_MAX_PROBLEM_CHARACTERS]]}
    validator = jsonschema_rs.validator_for(task["schema"], retriever=refuse_reference)
    problems: list[str] = []
    try:
        for problem in validator.iter_errors(document):
            if len(problems) >= _MAX_PROBLEMS:
                problems.append("…")
                break
            place = "/".join(str(part) for part in problem.instance_path)[:100]
            problems.append(f"/{place}: {problem.message[:_MAX_PROBLEM_CHARACTERS]}")
    except (ValueError, RecursionError) as error:  # what the library can't take: depth, numbers
        problems.append(f"can't be checked: {str(error)[:_MAX_PROBLEM_CHARACTERS]}")
    return {"problems": problems}


def refuse_constant(name: str) -> float:
    """For `json.loads`, which reads NaN and infinity. Raises: ValueError."""
    raise ValueError(f"{name} is not JSON")


def refuse_reference(uri: str) -> Any:
    """For a schema that refers to another document. Raises: ValueError."""
    raise ValueError(f"a schema may not fetch {uri!r}")


def _limit(*, memory_bytes: int, cpu_seconds: int) -> None:
    try:
        import resource
    except ImportError:  # not on Windows; the parent's timeout still holds
        return
    # If the parent is killed, the kernel still ends us by CPU time.
    limits = ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CPU, cpu_seconds), (resource.RLIMIT_CORE, 0))
    for kind, wanted in limits:
        _, hard = resource.getrlimit(kind)
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(kind, (most, most))
        except (OSError, ValueError):  # macOS knows no limit of address space
            continue


if __name__ == "__main__":
    main()
