"""The shell scripts of a session: its driver, and small helper programs. For any POSIX shell."""

from __future__ import annotations

# The driver must survive what a command leaves behind (options, functions, closed descriptors): `command` bypasses
# functions of the same name, nothing fails where `set -e` would exit, traces of `set -x` go to /dev/null.

DRIVER = r"""
__corral_nonce=$1 __corral_folder=$2 __corral_status=0 __corral_busy= __corral_id= __corral_kind= __corral_spare=
shift 2
command exec 7>&1 8>&2 9<&0 0</dev/null 1>/dev/null 2>/dev/null || exit 125
__corral_mark() {
    command printf '\036%s %s\036' "$__corral_nonce" "$1" >&7 &&
    command printf '\036%s %s\036' "$__corral_nonce" "$1" >&8 || command exit 125
}
__corral_set() { return "$1"; }
case ${BASH_VERSION-} in
    ?*)
        __corral_debug='case ${#BASH_SOURCE[@]} in [01]) ;; *) __corral_set 2 ;; esac'
        trap 'case $__corral_busy in 1)
            __corral_busy=2; set -T; shopt -s extdebug; trap "$__corral_debug" DEBUG; return 130 ;;
        esac' URG
        ;;
    *) trap 'case $__corral_busy in 1) __corral_busy=2; { : "${__corral_none?}"; } 2>/dev/null ;; esac' URG ;;
esac
while :; do
    IFS=' ' command read -r __corral_id __corral_kind <&9 || case $? in
        129 | 1[3-9]? | 2??) continue ;;
        *) break ;;
    esac
    case $__corral_kind in
        fifo) command exec 6<>"$__corral_folder/$__corral_id.in" || command exec 6</dev/null ;;
        *) command exec 6</dev/null ;;
    esac
    __corral_spare=
    command read -r __corral_spare <"/proc/$$/task/$$/children" || :
    { command jobs -p; command printf '%s\n' "$__corral_spare"; } >|"$__corral_folder/jobs" || :
    __corral_mark "b $__corral_id"
    if command [ -e "$__corral_folder/$__corral_id" ]; then
        command . "$__corral_folder/run"
        __corral_status=$?
    else
        __corral_status=130
    fi
    case $__corral_busy${BASH_VERSION:+b} in 2b) trap - DEBUG; shopt -u extdebug; set +T ;; esac
    case $__corral_busy in 2) __corral_status=130 ;; esac
    __corral_busy=
    __corral_mark "e $__corral_id $__corral_status"
done
command exit "$__corral_status"
"""
"""Arguments: the nonce, the folder. Reads lines with a command's name and the kind of its stdin. Its descriptors are
closed while a command runs; the shell restores them afterwards, together with the command's three.

No `set -m`: with job control, bash treats a child's SIGINT as its own and exits. The processes of a command are all
children that did not exist before it. SIGURG, which other programs ignore, interrupts: in bash, a debug trap returns
from function after function; in sh, an error does so at once, and `command` keeps it from ending the shell."""

RUN = r"""__corral_busy=1
case $__corral_status in
0) command . "$__corral_folder/$__corral_id" <&6 >&7 2>&8 6<&- 7>&- 8>&- 9<&- ;;
*) __corral_set "$__corral_status" || command . "$__corral_folder/$__corral_id" <&6 >&7 2>&8 6<&- 7>&- 8>&- 9<&- ;;
esac"""
"""Sourced around each command: `$?` is the status of the one before it, and an interrupt can return from here."""

PLACE = r"""
umask 077
folder=$1 run=$2 name=$3 kind=$4
shift 4
mkdir -p "$folder" || exit
cd "$folder" || exit
[ -e run ] || printf '%s\n' "$run" >run || exit
rm -f -- "$@"
cat >"$name" || exit
[ "$kind" != fifo ] || mkfifo "$name.in" || :
"""
"""Arguments: the folder, the text of RUN, a command's name, the kind of its stdin, files to remove. Stdin: its text."""

FEED = r"""
[ -p "$1" ] || { echo 'there is no FIFO' >&2; exit 1; }
exec cat 1<>"$1"
"""
"""Opened for reading and writing, so that it never waits for a reader that has gone."""

SIGNAL = r"""
shell=$1 name=$2 whom=$3 grace=$4 spare=' ' found= table=
[ "$whom" != left ] || [ ! -e "/proc/$shell" ] || exit 0
[ "$whom" != running ] || while read -r pid; do spare="$spare$pid "; done <"$5"
for file in /proc/[0-9]*/stat; do
    read -r line <"$file" || continue
    pid=${line%% *}
    rest=${line##*) }
    set -- $rest
    case $pid in $$ | "$shell") continue ;; esac
    table="$table $pid:$2:$3:"
    case $whom:$4 in all:$shell | left:$shell) found="$found $pid" ;; esac
done 2>/dev/null
search() {
    for entry in $table; do
        case $entry in *:"$1":*:) ;; *) continue ;; esac
        pid=${entry%%:*} group=${entry%:} group=${group##*:} parent=${entry#*:}
        [ "${parent%%:*}" = "$1" ] || continue
        case $spare in *" $pid "* | *" $group "*) continue ;; esac
        found="$found $pid"
        search "$pid"
    done
}
search "$shell"
for pid in $found; do kill -s "$name" "$pid"; done 2>/dev/null
while [ "$grace" -gt 0 ]; do
    alive=
    for pid in $found; do kill -0 "$pid" && alive=1; done 2>/dev/null
    [ -n "$alive" ] || exit 0
    grace=$((grace - 1))
    sleep 0.1
done
exit 0
"""
"""Arguments: the shell's process id; a signal; whom (`running`: its descendants except the jobs in the file of the
fifth argument; `all`: its descendants and its session; `left`: its session after its end); tenths of a second to wait
for them to end. The shell itself is not signalled. Without ps, which not every system has."""
