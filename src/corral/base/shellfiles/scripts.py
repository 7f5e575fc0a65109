"""The fixed scripts that run inside: POSIX sh with coreutils or busybox.

Paths are arguments, always absolute, so they never begin with a dash. Output is separated by NULs, since a name may
hold any other byte. A refusal of ours is one word on standard error, `corral:` and the name of an errno; the tools' own
refusals are recognised by their text (`answers.py`).

A path that was checked against rules must not lead elsewhere by a link that was put in it since. A shell can't open
without following links, but it can look afterwards: an open file and the working folder of a process do not change any
more, and the kernel tells in /proc where they are.
"""

from __future__ import annotations

HELPERS = """
fail() { echo "corral:$1" >&2; exit 90; }
is_at() { [ "$(readlink "/proc/self/$1"; echo x)" = "$2
x" ]; }
enter() {
  cd / || exit 91
  here= left=${1#/}
  while [ -n "$left" ]; do
    part=${left%%/*}
    case $left in */*) left=${left#*/} ;; *) left= ;; esac
    [ -L "./$part" ] && fail ELINK
    if [ ! -e "./$part" ]; then
      if [ "$2" != yes ]; then stat -c %f "./$part" >/dev/null || exit 91; fi
      is_at cwd "${here:-/}" || fail ELINK
      mkdir "./$part" || exit 91
    fi
    [ -d "./$part" ] || fail ENOTDIR
    cd -P "./$part" 2>/dev/null || fail EACCES
    here=$here/$part
  done
  is_at cwd "${here:-/}" || fail ELINK
}
regular() {
  if [ ! -f "$1" ]; then
    [ -d "$1" ] && fail EISDIR
    [ -e "$1" ] && fail EINVAL
    stat -L -c %f "$1" >/dev/null || exit 91
    fail ENOENT
  fi
}
"""
"""Precede every script.

`enter` changes to a folder, no part of whose path may be a link; with `yes`, missing folders are created.
`is_at` asks another program, since shells remember their working folder by name.
`regular` refuses what is not a regular file; for a missing one, the message of `stat` is passed on.
"""

NO_LINKS = "nolinks=yes\n"
LINKS = "nolinks=\n"
"""Precede a script: with `NO_LINKS`, no part of its path may be a link."""

STAT = """
if [ -n "$nolinks" ]; then
  folder=${1%/*}; enter "${folder:-/}" no
  about=$(stat -c '%f %s %Y %u %g %d:%i %h' "./${1##*/}") || exit 91
  case $about in a???" "*) fail ELINK ;; esac
  echo "$about"; exit 0
fi
stat $2 -c '%f %s %Y %u %g %d:%i %h' "$1" || exit 91
if [ -z "$2" ] && [ -L "$1" ]; then readlink "$1"; fi
"""
"""path, `-L` or nothing. Prints one line, followed by the target if it is a link."""

WALK = r"""
[ -z "$nolinks" ] || enter "$1" no
[ -d "$1" ] || { stat -L -c %f "$1" >/dev/null || exit 91; fail ENOTDIR; }
[ -z "$4" ] || { [ -r "$1" ] && [ -x "$1" ]; } || fail EACCES
case $nolinks$1 in yes*) root=. ;; /) root=/ ;; *) root=$1/. ;; esac
depth=; [ "$2" = 0 ] || depth="-maxdepth $2"
prune=; set -f
[ "$3" = all ] || prune='( -name .* ! -name . -prune ) -o'
if find / -maxdepth 0 -printf '' 2>/dev/null; then
  find "$root" -mindepth 1 $depth $prune -printf '%y %m %s %T@ %U %G %D:%i %n\0%p\0%l\0'
else
  find "$root" -mindepth 1 $depth $prune -exec sh -c '
    for f; do
      about=$(stat -c "%f %s %Y %u %g %d:%i %h" "$f") || continue
      target=; [ -L "$f" ] && { target=$(readlink "$f"; echo x); target=${target%?x}; }
      printf "%s\0%s\0%s\0" "$about" "$f" "$target"
    done' sh {} +
fi
exit 0
"""
"""path, how deep (0: without end), `all` or `visible`, `readable` if the folder must be.

Records of three: what `stat` knows, the path, a link's target.
"""

READ = """
regular "$1"
where=$(readlink -f "$1"; echo x)
case $where in /proc/*|/sys/*) fail EINVAL ;; esac
[ -r "$1" ] || fail EACCES
exec 3<"$1" || exit 91
[ -z "$nolinks" ] || is_at fd/3 "$1" || is_at fd/3 "$1 (deleted)" || fail ELINK
[ -f /proc/self/fd/3 ] || fail EINVAL
size=$(stat -L -c %s /proc/self/fd/3) || exit 91
echo "$size"
[ "$size" = 0 ] || exec head -c "$size" <&3
"""
"""path. Prints the size in a line, then as many bytes: no more if the file grows."""

WRITE = """
path=$1 temporary=$2 size=$3 mode=$4 parents=$5 how=$6 sha=$7 phase=$8
umask 022
where=$path into=
if [ -n "$nolinks" ]; then
  folder=${path%/*}; enter "${folder:-/}" "$parents"
  where=./${path##*/}
  [ -L "$where" ] && fail ELINK
  case $(mv --help 2>&1) in *-T*) into=-T ;; esac
elif [ -L "$where" ]; then
  where=$(readlink -f "$where" && echo x) || fail ENOENT
  where=${where%?x}
fi
folder=${where%/*}; [ -n "$folder" ] || folder=/
if [ ! -d "$folder" ]; then
  [ "$parents" = yes ] || { stat -L -c %f "$folder" >/dev/null || exit 91; fail ENOTDIR; }
  [ -e "$folder" ] && fail ENOTDIR  # mkdir would say that it exists
  mkdir -p "$folder" || exit 91
fi
if [ -e "$where" ] || [ -L "$where" ]; then
  [ "$how" = exclusive ] && fail EEXIST
  [ -d "$where" ] && fail EISDIR
  [ -f "$where" ] || fail EINVAL
  [ -w "$where" ] || fail EACCES
  [ "$mode" = keep ] && mode=$(stat -c %a "$where")
elif [ "$how" = swap ]; then
  fail ENOENT
fi
[ "$mode" = keep ] && mode=644
[ -w "$folder" ] && [ -x "$folder" ] || fail EACCES
known=${path%/*}/$temporary
temporary=$folder/$temporary
trap 'rm -f "$temporary"' EXIT
trap 'exit 92' HUP INT TERM
if [ "$phase" != commit ]; then
  [ "$phase" = all ] || rm -f "$temporary"
  umask 077; set -C; exec 4>"$temporary" || exit 91
  umask 022; set +C
  cat >&4 || exit 91
  if [ "$phase" = stage ]; then trap - EXIT; printf %s "$temporary"; exit 0; fi
else
  exec 4<"$temporary" || exit 91
  [ -z "$nolinks" ] || is_at fd/4 "$known" || fail ELINK
fi
[ "$(stat -L -c %s /proc/self/fd/4)" = "$size" ] || exit 92
if [ "$how" = append ] && [ -f "$where" ]; then
  exec 3<"$where" || exit 91
  [ -z "$nolinks" ] || is_at fd/3 "$path" || is_at fd/3 "$path (deleted)" || fail ELINK
  umask 077; set -C; exec 5>"$temporary.2" || exit 91
  umask 022; set +C
  cat <&3 >&5 && cat /proc/self/fd/4 >&5 && mv -f $into "$temporary.2" "$temporary" ||
    { rm -f "$temporary.2"; exit 91; }
  exec 4<&5
fi
chmod "$mode" /proc/self/fd/4 || exit 91
case $how in
  exclusive)
    [ -d "$where" ] && fail EEXIST
    ln $into "$temporary" "$where" || { [ -e "$where" ] || [ -L "$where" ] && fail EEXIST; exit 91; } ;;
  swap)
    now=$(sha256sum <"$where") || exit 91
    [ "${now%% *}" = "$sha" ] || fail ECHANGED
    mv -f $into "$temporary" "$where" || exit 91 ;;
  *)
    [ -d "$where" ] && fail EISDIR
    mv -f $into "$temporary" "$where" || exit 91 ;;
esac
"""
"""path, temporary name, size, mode, parents, how, sha256, phase. A stream that ends too early changes nothing.

Where the size is known, all is done at once. Otherwise the content is put aside first (`stage`), and takes its place
when all of it has come (`commit`). What is put aside is named in the answer, so that it may come by another way.
It stays open until it is in its place, since a program inside sees its name and may put a link there; `-T`, where there
is one, keeps it out of a folder that a link leads to.
"""

DROP = """
where=$1
[ -L "$where" ] && { where=$(readlink -f "$where"; echo x); where=${where%?x}; }
rm -f "${where%/*}/$2" "${where%/*}/$2.2"
"""
"""path, temporary name: removes the temporary file of an unfinished write."""

MOVE = """
from=$1 to=$2
[ -e "$from" ] || [ -L "$from" ] || { stat -c %f "$from" >/dev/null || exit 91; fail ENOENT; }
folder=${to%/*}; [ -n "$folder" ] || folder=/
[ -d "$folder" ] || { stat -L -c %f "$folder" >/dev/null || exit 91; fail ENOTDIR; }
case $to/ in "$from"/?*) fail EINVAL ;; esac
if [ -e "$to" ] || [ -L "$to" ]; then
  [ "$3" = overwrite ] || fail EEXIST
  [ "$from" -ef "$to" ] && [ ! -L "$from" ] && [ ! -L "$to" ] && exit 0
  if [ -d "$to" ] && [ ! -L "$to" ]; then
    [ -d "$from" ] && [ ! -L "$from" ] || fail EISDIR
    rmdir "$to" || exit 91
  else
    [ -d "$from" ] && [ ! -L "$from" ] && fail ENOTDIR
    [ -L "$to" ] && { rm -f "$to" || exit 91; }
  fi
fi
mv -f "$from" "$to" || exit 91
"""
"""from, to, `overwrite` or not."""

REMOVE = """
[ "$1" = / ] && fail EPERM
if [ ! -e "$1" ] && [ ! -L "$1" ]; then
  stat -c %f "$1" >/dev/null || exit 91
  fail ENOENT
fi
if [ -d "$1" ] && [ ! -L "$1" ]; then
  [ "$2" = recursive ] || { rmdir "$1" || exit 91; exit 0; }
  rm -rf "$1" || exit 91
else
  rm -f "$1" || exit 91
fi
"""
"""path, `recursive` or not."""

MKDIR = """
umask 022
if [ "$2" = parents ]; then
  mkdir -p "$1" || exit 91
else
  [ -e "$1" ] || [ -L "$1" ] && fail EEXIST
  mkdir "$1" || exit 91
fi
[ -z "$3" ] || chmod "$3" "$1" || exit 91
"""
"""path, `parents` or not, mode or nothing."""

SYMLINK = """
[ -e "$1" ] || [ -L "$1" ] && fail EEXIST
ln -s -- "$2" "$1" || exit 91
"""
"""path, target."""

CHMOD = """
[ -e "$1" ] || { stat -L -c %f "$1" >/dev/null || exit 91; fail ENOENT; }
chmod "$2" "$1" || exit 91
"""
"""path, mode."""

PACK = """
[ -e "$1" ] || [ -L "$1" ] || { stat -c %f "$1" >/dev/null || exit 91; fail ENOENT; }
if [ -d "$1" ] && [ ! -L "$1" ]; then
  cd "$1" || exit 91
  tar -cf - .
else
  [ -f "$1" ] || [ -L "$1" ] || fail EINVAL
  folder=${1%/*}; cd "${folder:-/}" || exit 91
  name=${1##*/}
  case $name in -*) name=./$name ;; esac
  tar -cf - "$name"
fi
exit 0
"""
"""path. Prints a tar, without what can't be read."""

UNPACK = """
umask 022
[ -e "$1" ] && [ ! -d "$1" ] && fail ENOTDIR
mkdir -p "$1" || exit 91
cd "$1" || exit 91
exec tar -xopf -
"""
"""path. Reads a tar that was checked on the host."""

SEARCH = """
root=$1 large=$3
[ -e "$root" ] || { stat -L -c %f "$root" >/dev/null || exit 91; fail ENOENT; }
set -f
hide=; [ "$2" = all ] || hide='( -name .* ! -name . -prune ) -o'
if [ -n "$nolinks" ] && [ -d "$root" ] && [ ! -L "$root" ]; then enter "$root" no; root=.
elif [ -n "$nolinks" ]; then
  folder=${root%/*}; enter "${folder:-/}" no
  root=././${root##*/} hide=
  [ -L "$root" ] && fail ELINK
elif [ -d "$root" ]; then case $root in /) ;; *) root=$root/. ;; esac
else root=$(readlink -f "$root"; echo x); root=${root%?x}; hide=; fi
told='for f; do printf "corral-large:%s\\n" "$f" >&2; done'
read='for f; do [ -r "$f" ] || printf "corral-shut:%s\\n" "$f" >&2; done'
links=; tar --hard-dereference --version >/dev/null 2>&1 && links=--hard-dereference
if [ -n "$links" ] && [ "$root" = . ]; then
  less=; [ -z "$hide" ] || less='--wildcards --no-wildcards-match-slash --no-anchored --exclude=.[!/]*'
  find . $hide -type f ! -size +"$large" -exec sh -c "$read" sh {} + \\
    -o -type f -size +"$large" -exec sh -c "$told" sh {} + -print |
    tar $links -cf - $less --anchored --no-wildcards -X - .
  exit 0
fi
find "$root" $hide -type f ! -size +"$large" -exec tar $links -cf - {} + -exec sh -c "$read" sh {} + \\
  -o -type f -size +"$large" -exec sh -c "$told" sh {} +
exit 0
"""
"""path, `all` or `visible`, how many blocks of 512 bytes are too large. Prints the files below, as tar after tar.

Without links, names are relative: `./` and the path below a folder, `././` and the name of a file that is searched
alone.

Where no link may be followed, GNU tar walks the tree by itself: it follows no link, not even one that appears
meanwhile. Other tars get the names from find, and in between a folder may become a link.
"""
