"""The base of a sandbox: the host's own /usr, and around it a small generated system.

Nothing of the host's /etc or homes is copied. Programs that live outside /usr (a Python of pyenv or uv, a Node of nvm)
are shown read-only at a neutral path, and only their own folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path

from corral.engine.datafolder import make_part
from corral.engine.errors import UnsupportedError
from corral.engine.recipe import BASE_FIRST_UID, CODE_GID, CODE_UID, Overlaid
from corral.network.inner import ADDRESS

BIN = "/opt/corral/bin"
FOLDER = "base"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
"""The certificates that the host trusts, where most programs look for them."""
OWN_CERTIFICATES = "/etc/corral/ca-certificates.crt"
"""The same with the sandbox's own authority, if it has one: written by the file agent, so its folder is the user's."""
OWN_AUTHORITY = "/etc/corral/authority.pem"
"""The certificate of that authority alone, for programs with a store of their own."""
_FORMAT = 8
"""Raise it when the generated part changes, so that an older one is not used again."""

_PREFIX = f"{_FORMAT}-"
_ATTEMPTS = 10

_FOLDERS = {
    **dict.fromkeys(("dev", "etc", "etc/alternatives", "etc/fonts", "home", "mnt", "opt", "opt/corral"), 0o755),
    **dict.fromkeys(("etc/ssl", "etc/ssl/certs", "etc/pki", "etc/pki/tls", "etc/pki/tls/certs"), 0o755),
    **dict.fromkeys(("opt/corral/bin", "run", "srv", "usr", "var", "var/cache", "var/lib", "var/log"), 0o755),
    **dict.fromkeys(("proc", "sys"), 0o555),
    **dict.fromkeys(("tmp", "var/tmp"), 0o1777),
    "root": 0o700,
}
OWN_FOLDERS = ("home/daytona", "workspace", "workspaces", "etc/corral")
"""Owned by the code's user. All but the last are the working folders that some framework expects."""
_CERTIFICATE_LINKS = ("etc/ssl/cert.pem", "etc/pki/tls/cert.pem", "etc/pki/tls/certs/ca-bundle.crt")
"""Where else programs look for certificates."""
MAX_CERTIFICATES_BYTES = 8 * 1024 * 1024
_ETC = {
    # Without it, programs that draw text print warnings.
    "fonts/fonts.conf": (
        '<?xml version="1.0"?>\n<!DOCTYPE fontconfig SYSTEM "fonts.dtd">\n<fontconfig>\n'
        "  <dir>/usr/share/fonts</dir>\n  <dir>/usr/local/share/fonts</dir>\n"
        '  <dir prefix="xdg">fonts</dir>\n  <cachedir prefix="xdg">fontconfig</cachedir>\n</fontconfig>\n'
    ),
    "group": "root:x:0:\ntty:x:5:\nstaff:x:50:\nusers:x:100:\ndaytona:x:1000:\nnogroup:x:65534:\n",
    "gshadow": "",
    "hostname": "corral\n",
    "hosts": "127.0.0.1\tlocalhost corral\n::1\tlocalhost ip6-localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "os-release": 'NAME="Corral sandbox"\nID=corral\n',
    "passwd": (
        "root:x:0:0:root:/root:/bin/sh\n"
        "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
        "daytona:x:1000:1000:daytona:/home/daytona:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    # A given PATH is kept: it has the Python that the sandbox was created with, and the caller's additions.
    "profile": (
        'case "$(export -p)" in *" PATH="*) ;;\n'
        f'*) export PATH="{BIN}:$HOME/.local/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin" ;; esac\n'
    ),
    "protocols": "ip\t0\tIP\nicmp\t1\tICMP\ntcp\t6\tTCP\nudp\t17\tUDP\n",
    "resolv.conf": f"nameserver {ADDRESS}\noptions timeout:5 attempts:2\n",
    "services": "ssh\t22/tcp\ndomain\t53/udp\nhttp\t80/tcp\nhttps\t443/tcp\n",
    "shells": "/bin/sh\n/bin/bash\n",
}
_ROOT_NAMES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


@dataclass(frozen=True, slots=True)
class ToolFolder:
    """A program's folder outside /usr, shown at `target`."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class HostFile:
    """A file of the host that is copied, and what changes with it."""

    path: str
    mark: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BaseDescription:
    """Everything that the generated part depends on."""

    tools: tuple[ToolFolder, ...] = ()
    commands: dict[str, str] = field(default_factory=dict)
    """Names in /opt/corral/bin: a path to link to, or a script if it starts with "#!"."""
    owned: bool = False
    """As root: files belong to root inside, the home to the code's user."""
    certificates: HostFile | None = None
    """Those that the host trusts."""


def build(data_folder: Path, description: BaseDescription) -> tuple[Overlaid, ...]:
    """Create the skeleton if it does not exist, and return the trees of a sandbox on it."""
    links, real = _root_entries()
    alternatives = _alternatives()
    targets = [tool.target for tool in description.tools]
    generated = [_FORMAT, _FOLDERS, OWN_FOLDERS, _ETC, links, real, alternatives, description.commands, targets]
    certificates = asdict(description.certificates) if description.certificates is not None else None
    content = json.dumps([*generated, description.owned, certificates], sort_keys=True)
    parent = make_part(data_folder, FOLDER)
    skeleton = parent / f"{_PREFIX}{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    for _ in range(_ATTEMPTS):
        if skeleton.exists():
            break
        _make(skeleton, description, links, real, alternatives)
    trees = [Overlaid("/", (str(skeleton),), writable=True), Overlaid("/usr", ("/usr",), writable=description.owned)]
    trees += [Overlaid(f"/{name}", (f"/{name}",), writable=description.owned) for name in real]
    trees += [Overlaid(tool.target, (tool.source,)) for tool in description.tools]
    return tuple(trees)


def identify(path: str) -> tuple[int, int] | None:
    """Identifies a folder of the data folder, since another may be created with the same name later. None if it can't
    be shown any more: it was deleted, or is a base of another version."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if os.path.basename(os.path.dirname(path)) == FOLDER and not is_current(Path(path).name):
        return None
    return (found.st_ino, found.st_ctime_ns) if stat.S_ISDIR(found.st_mode) else None


def is_current(name: str) -> bool:
    """True if a folder of this name in `base/` is of this version, or unfinished."""
    return name.startswith((_PREFIX, ".new-"))


def _root_entries() -> tuple[dict[str, str], list[str]]:
    """On a merged-/usr system /bin and similar folders are links; on others they are separate layers."""
    links, real = {}, []
    for name in _ROOT_NAMES:
        path = f"/{name}"
        if os.path.islink(path):
            links[name] = os.readlink(path)
        elif os.path.isdir(path):
            real.append(name)
    return links, real


def _alternatives() -> dict[str, str]:
    """Debian's choice of awk, vi and the like: links into /usr, without which such commands don't work."""
    folder = Path("/etc/alternatives")
    if not folder.is_dir():
        return {}
    links = {}
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink() and not entry.name.endswith(".gz"):
            goal = os.readlink(entry)
            if goal.startswith("/usr/"):
                links[entry.name] = goal
    return links


def _make(
    skeleton: Path, description: BaseDescription, links: dict[str, str], real: list[str], alternatives: dict[str, str]
) -> None:
    unfinished = skeleton.parent / f".new-{os.getpid()}-{os.urandom(4).hex()}"
    unfinished.mkdir()
    try:
        folders = {**_FOLDERS, **dict.fromkeys(real, 0o755), **dict.fromkeys(OWN_FOLDERS, 0o755)}
        folders |= {tool.target.lstrip("/"): 0o755 for tool in description.tools}
        for name in folders:
            (unfinished / name).mkdir(parents=True, exist_ok=True)
        for name, goal in links.items():
            (unfinished / name).symlink_to(goal)
        for name, text in _ETC.items():
            (unfinished / "etc" / name).write_text(text)
        for name, goal in alternatives.items():
            (unfinished / "etc/alternatives" / name).symlink_to(goal)
        if description.certificates is not None:
            _add_certificates(unfinished, description.certificates.path)
        (unfinished / "etc/mtab").symlink_to("/proc/self/mounts")
        for name, command in description.commands.items():
            _add_command(unfinished / BIN.lstrip("/") / name, command)
        _set_modes(unfinished, folders)
        if description.owned:
            for name in OWN_FOLDERS:
                _give_away(unfinished / name)
        unfinished.rename(skeleton)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        # Another process may have created it first; and another version of Corral may remove it at once.
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) and not skeleton.exists():
            raise


def _give_away(path: Path) -> None:
    """Owned by the code's user, with another id on disk: the plain id may be that of a login of this machine."""
    try:
        os.chown(path, BASE_FIRST_UID + CODE_UID, BASE_FIRST_UID + CODE_GID)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise UnsupportedError(
            "root has too few user ids: this container maps only some of them",
            hint="run Corral as an ordinary user, or map all ids into the container",
        ) from error


def _add_certificates(skeleton: Path, path: str) -> None:
    with open(path, "rb") as file:
        (skeleton / CERTIFICATES.lstrip("/")).write_bytes(file.read(MAX_CERTIFICATES_BYTES))
    for name in _CERTIFICATE_LINKS:
        (skeleton / name).symlink_to(CERTIFICATES)


def _add_command(path: Path, command: str) -> None:
    if command.startswith("#!"):
        path.write_text(command)
    else:
        path.symlink_to(command)


def _set_modes(skeleton: Path, folders: dict[str, int]) -> None:
    """Make it readable regardless of the umask, since sandboxes run under other user ids."""
    commands = skeleton / BIN.lstrip("/")
    for path in (skeleton, *skeleton.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent == commands else 0o644)
    for name, mode in folders.items():
        (skeleton / name).chmod(mode)
