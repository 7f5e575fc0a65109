"""The shell scripts of a container: its first process, how a program is started, and how its tree is ended.

POSIX sh. Ending a tree uses built-ins only, so that it works where no process can be started any more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from corral.errors import InvalidCommandError
from corral.protocol import SpawnRequest

_SPECIAL = re.compile(r"[\udc80-\udcff\\]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_TOGETHER_BYTES = 2 * 1024**2 - 128 * 1024

CALL_VARIABLE = "CORRAL_CALL"
"""In the environment of every program of a call, so that processes that left its tree are found."""

_END_TREE = r"""
end_tree() {
  _m=$1 _r=$2 _all=" $2 " _n=0
  kill -STOP "$_r" 2>/dev/null
  while [ $_n -lt 100 ]; do
    _n=$((_n + 1)) _new=0
    for _d in /proc/[0-9]*; do
      _p=${_d#/proc/}
      case $_all in *" $_p "*) continue ;; esac
      [ "$_p" = 1 ] && continue
      _line=; { read -r _line <"$_d/stat"; } 2>/dev/null
      [ -n "$_line" ] || continue
      set -- ${_line##*) }
      _hit=0
      case $_all in *" $2 "*) _hit=1 ;; esac
      [ "$4" = "$_r" ] && _hit=1
      if [ $_hit = 0 ] && [ "$1" != Z ]; then
        { while read -r _line || [ -n "$_line" ]; do
          case $_line in *"CORRAL_CALL=$_m"*) _hit=1 ;; esac
          _line=
        done <"$_d/environ"; } 2>/dev/null
      fi
      [ $_hit = 1 ] || continue
      _all="$_all$_p " _new=1
      kill -STOP "$_p" 2>/dev/null
    done
    [ $_new = 1 ] || break
  done
  for _p in $_all; do kill -KILL "$_p" 2>/dev/null; done
}
"""
"""Stops all processes of a call until it finds no more, then kills them: none escapes by forking."""

KEEPER = (
    _END_TREE
    + r"""
live() {
  [ -z "$timer" ] || kill -KILL "$timer" 2>/dev/null
  timer=
  case $1 in ''|-) ;; *) { sleep "$1" || sleep "${1%%.*}"; kill -TERM 1; } & timer=$! ;; esac
}
serve() {
  timer=; kept=
  while read -r word first second <&3; do
    case $word in
      end) end_tree "$first" "$second"; echo "ended $first" ;;
      live) live "$first"; echo "lives" ;;
      keep) kept=1; live "$first"; echo "kept" ;;
    esac
  done
  if [ -z "$kept" ]; then kill -TERM 1; fi
  exec 3<&-
  while :; do sleep 86400; done
}
trap 'exit 0' TERM
exec 3<&0 </dev/null
serve &
wait $!
exit 0
"""
)
"""The first process. It ends when its input is closed, which its owner holds open, or at its deadline; it reaps."""

KILLER = _END_TREE + 'end_tree "$1" "$2"\n'
"""mark, pid: ends a tree as a separate program, where the keeper can't be asked or lacks the permission."""

SIGNALLER = 'kill -s "$1" -- "-$2" 2>/dev/null || kill -s "$1" "$2" 2>/dev/null; exit 0\n'
"""signal, pid: signals the process group."""

_LAUNCHER = r"""
_corral_t=$1 _corral_c=$2 _corral_m=$3
case $_corral_m in *e*)
  _corral_c=$(printf '%bx' "$_corral_c"); _corral_c=${_corral_c%x}
esac
case $_corral_m in *t*) stty rows "$4" cols "$5" ;; esac 2>/dev/null
shift 5
case $_corral_m in *e*)
  _corral_n=$#
  while [ "$_corral_n" -gt 0 ]; do
    _corral_a=$(printf '%bx' "$1"); shift
    set -- "$@" "${_corral_a%x}"
    _corral_n=$((_corral_n - 1))
  done
esac
cd -- "$_corral_c" 2>/dev/null || { echo "$_corral_t cwd 0 0"; exit 125; }
echo "$_corral_t $$"
unset _corral_t _corral_c _corral_a _corral_n OLDPWD
case $_corral_m in *n*) unset _corral_m; exec "$@" </dev/null ;; esac
unset _corral_m
exec "$@"
"""


def launch(argv: Sequence[str], *, token: str, cwd: str, stdin: bool, size: tuple[int, int] | None) -> tuple[str, ...]:
    """The argv that prints its pid on the first line of its output, and then becomes the program.

    That line comes before anything hostile has run. Bytes that are not UTF-8 are escaped, because the daemon's JSON
    can't carry them.
    """
    escaped = any(_has_raw_bytes(word) for word in (*argv, cwd))
    mode = f"{'e' if escaped else ''}{'' if stdin else 'n'}{'t' if size else ''}-"
    rows, columns = size or (0, 0)
    words = (cwd, *argv)
    where, *rest = [escape(word, "\\0") for word in words] if escaped else words  # for `printf %b`
    return ("/bin/sh", "-c", _LAUNCHER, "sh", token, where, mode, str(rows), str(columns), *rest)


def part_env(request: SpawnRequest) -> tuple[tuple[str, ...], dict[str, str]]:
    """The variables that a shell would drop or JSON can't carry, as words; and the others.

    Raises:
        InvalidCommandError: together they exceed the kernel's limit.
    """
    odd = tuple(f"{name}={value}" for name, value in request.env.items() if not _VARIABLE.fullmatch(name) or
                _has_raw_bytes(value))  # fmt: skip
    names = {word.partition("=")[0] for word in odd}
    plain = {name: value for name, value in request.env.items() if name not in names}
    words = (
        *request.argv, *odd, *(f"{name}={value}" for name, value in plain.items()), *request.read_only, *request.hidden,
    )  # fmt: skip
    if sum(len(word.encode("utf-8", "surrogateescape")) + 9 for word in words) > _MAX_TOGETHER_BYTES:
        raise InvalidCommandError(
            "arguments and environment exceed the kernel's limit",
            hint="pass content as stdin=, or write a file",
        )
    return odd, plain


def _has_raw_bytes(word: str) -> bool:
    return any("\udc80" <= char <= "\udcff" for char in word)


def escape(word: str, mark: str) -> str:
    """The word with backslashes, and bytes that are not UTF-8, as a mark and three octal digits."""
    return _SPECIAL.sub(lambda found: f"{mark}{ord(found[0]) & 0xFF:03o}", word)
