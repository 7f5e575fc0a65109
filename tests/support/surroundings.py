"""The same surroundings for every run of the tests: in a terminal, in a background job, in an unusual shell.

Without this, a test that compares a mode, a colour or a language would depend on the user who started it. How Corral
itself behaves in other surroundings is tested by tests/engine/test_surroundings.py, in separate processes.
"""

import locale
import os
import signal

# Settings of programs that tests run. Mirrors and proxies stay: without them nothing could be fetched.
_NAMES = {
    "BASH_ENV", "CDPATH", "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "COLUMNS", "CONTAINER_HOST", "DOCKER_CONTEXT",
    "DOCKER_HOST", "DOCKER_TLS_VERIFY", "EDITOR", "ENV", "FORCE_COLOR", "GREP_COLORS", "GREP_OPTIONS", "LANG",
    "LANGUAGE", "LESS", "LINES", "LS_COLORS", "NODE_OPTIONS", "NODE_PATH", "NO_COLOR", "PAGER", "POSIXLY_CORRECT",
    "PROMPT_COMMAND", "PS1", "PYTEST_ADDOPTS", "PYTHONBREAKPOINT", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED",
    "PYTHONINSPECT", "PYTHONIOENCODING", "PYTHONOPTIMIZE", "PYTHONSTARTUP", "PYTHONUNBUFFERED", "PYTHONUTF8",
    "PYTHONWARNINGS", "PY_COLORS", "SHELL", "VISUAL", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
    "XDG_STATE_HOME",
}  # fmt: skip
_PREFIXES = ("CORRAL_", "DAYTONA_", "GIT_", "LC_")

# What Python ignores by itself, in every process.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def make_neutral() -> None:
    """Give this process, and all that it starts, the surroundings that the tests are written for."""
    os.umask(0o022)
    _heed_signals()
    for name in list(os.environ):
        if name in _NAMES or name.startswith(_PREFIXES):
            del os.environ[name]
    os.environ |= {
        "LC_ALL": "C.UTF-8",
        "TERM": "xterm",
        # The user who runs the tests may have no name in git, another first branch, or sign commits.
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
    }
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    for name in ("NO_PROXY", "no_proxy"):  # no proxy leads to the servers that tests start
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "localhost,127.0.0.1,::1")))


def _heed_signals() -> None:
    """A background job ignores SIGINT, nohup SIGHUP, and children of who ignores a signal ignore it too."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {*_IGNORED_BY_PYTHON}:
        if signal.getsignal(number) != signal.SIG_IGN:
            continue
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        elif number == signal.SIGHUP:
            signal.signal(number, lambda *_: None)  # children heed it, and the run outlives its terminal as was asked
        else:
            signal.signal(number, signal.SIG_DFL)
