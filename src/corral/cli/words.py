"""The library's errors in the words of the command line: flags instead of parameters, commands instead of methods."""

from __future__ import annotations

import re

_SAME_NAMES = (
    "backend", "cpus", "cwd", "env", "ephemeral", "image", "jobs", "keep_on_failure", "name", "network", "objective",
    "processes", "repeat", "seed", "speed", "timeout", "user", "venv", "workdir",
)  # fmt: skip
FLAGS = {name: f"--{name.replace('_', '-')}" for name in _SAME_NAMES} | {
    "api_key": "--key",
    "api_url": "--url",
    "disk_bytes": "--disk",
    "exec_timeout": "--timeout",
    "id": "an id",
    "labels": "--label",
    "memory_bytes": "--memory",
    "output_limit_bytes": "--output-limit",
    "packages": "--package",
    "size_bytes": "--size",
    "pty": "--tty",
}
"""Parameters of the library, and the flags that set them."""

_PHRASES = (
    (r"backend\.list\(\) lists", "`corral sandbox list` lists"),
    (r"list_snapshots\(\) lists", "`corral sandbox snapshots` lists"),
    (r"start it: backend\.start\(id\)|backend\.start\(\) it", "`corral sandbox start ID` starts it"),
    (
        r"backend\.capabilities\(\) lists what it has",
        "use --backend embedded; `corral doctor` lists what it supports here",
    ),
    (r"resume\(\) it(?: first)?", "resume it in the program that paused it"),
    (r"start it with pty=True", "give --tty"),
    (r", or Volume\.create\(name\)|Volume\.create\(name\), or ", ""),
    (r", or EmbeddedBackend\(host_folders=…\)", ", or --host-folders before the command"),
    (r"mount one: Mount\(.*mode=\"overlay\"\)", "mount one in a new sandbox: --mount ~/project:/work:overlay"),
    (r"mode=['\"](\w+)['\"] and apply\(\)", r"the mode \1 and --apply, or `corral sandbox apply`"),
    (r"mode=['\"](\w+)['\"]", r"the mode \1"),
    (r"overwrite=True", "--overwrite"),
    (r"source=(?:\"~/project\"?)?", "--mount ~/project:/project"),
    (r"files\.upload", "`corral sandbox cp`"),
    (r"pass (?:it|data|content) as stdin=", "pass it by standard input"),
    (r"give it with set_secrets; a Variable.*", "`corral sandbox secrets ID --secret NAME@HOST` gives it"),
    (r"; register_language adds others", ""),
    (r"; Image\.debian_slim\(\)\.pip_install\(…\) builds it", ""),
    (r", or None\b", ""),
    (r"set host= or CORRAL_DOCKER_HOST", "set CORRAL_DOCKER_HOST"),
    (r"resources\.processes", "--processes"),
)
_PARAMETER = re.compile(rf"(?<![\w.-])({'|'.join(FLAGS)})=(\[[^\]]*\]|\{{[^}}]*\}}|'[^']*'|\"[^\"]*\"|[^\s,;:)(]*)")
_QUOTED_WORD = re.compile(r"(['\"])([\w.,:/-]+)\1")


def in_cli_words(text: str) -> str:
    """A hint of the library in the words of the command line."""
    for pattern, said in _PHRASES:
        text = re.sub(pattern, said, text)
    return _PARAMETER.sub(lambda found: _QUOTED_WORD.sub(r"\2", _name_flag(found)), text)


def begin_in_cli_words(text: str) -> str:
    """A message of the library. Only its beginning: the rest may be what the user wrote."""
    if text.startswith("network: "):
        return f"--{text}"
    found = _PARAMETER.match(text)
    return text if found is None else _name_flag(found) + text[found.end() :]


def _name_flag(found: re.Match[str]) -> str:
    flag, value = FLAGS[found[1]], found[2]
    if value in ("", "True", "…", "[…]"):
        return flag
    return f"{flag} {value.strip('[]')}"
