"""Trees in memory as tar streams."""

from __future__ import annotations

import io
import posixpath
import tarfile

from corral.backends.memory.tree import READ, Node, Spot, Tree
from corral.errors import SandboxFileError

_TYPES = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}


def pack(tree: Tree, path: str) -> bytes:
    """A file or folder as a tar, names relative to it. A FIFO or device means nothing elsewhere and is left out."""
    at, top = tree.existing(path, follow=False)
    members = [(".", top)] if top.kind == "folder" else [(posixpath.basename(at), top)]
    if top.kind == "folder":
        members += [(posixpath.relpath(below, at), node) for below, node in tree.walk(at, unreadable=[], hidden=True)]
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, node in members:
            if node.kind in _TYPES:
                _add(tree, tar, name, node)
    return sink.getvalue()


def _add(tree: Tree, tar: tarfile.TarFile, name: str, node: Node) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime, info.linkname = _TYPES[node.kind], node.mode, int(node.modified), node.target
    info.uid = info.gid = node.uid
    if node.kind == "file":
        try:
            tree.need(node, READ)
        except OSError:
            return
        info.size = len(node.data)
    tar.addfile(info, io.BytesIO(node.data))


def unpack(tree: Tree, path: str, archive: bytes) -> int:
    """Lay a tar down below a folder.

    Raises:
        SandboxFileError: broken, or a member that leads out of the folder.
    """
    tree.make_folders(path)
    root = tree.existing(path)[0]
    modes: list[tuple[Node, int]] = []
    count = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as tar:
            for member in tar:
                count += _lay_down(tree, tar, member, root, modes)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and not isinstance(error, tarfile.TarError) and error.errno:
            raise
        raise SandboxFileError(f"{path}: bad archive: {error}", path=path, op="unpack") from error
    for node, mode in modes:  # last: a read-only folder must be filled first
        node.mode = mode
    return count


def _lay_down(
    tree: Tree, tar: tarfile.TarFile, member: tarfile.TarInfo, root: str, modes: list[tuple[Node, int]]
) -> int:
    parts = [part for part in member.name.split("/") if part not in ("", ".")]
    if ".." in parts or not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        if ".." in parts:
            raise _leads_out(member.name, root)
        return 0
    if not parts:
        modes.append((tree.existing(root)[1], member.mode & 0o7777))
        return 1
    folder = "/".join([root.rstrip("/"), *parts[:-1]])
    tree.make_folders(folder)
    spot = tree.find(f"{folder}/{parts[-1]}", follow=False)
    if not f"{spot.path}/".startswith(f"{root.rstrip('/')}/"):
        raise _leads_out(member.name, root)
    node = _read(tree, tar, member, root)
    if member.isdir():
        if spot.node is None or spot.node.kind != "folder":
            _replace(tree, spot, node)
            modes.append((node, member.mode & 0o7777))
        else:
            modes.append((spot.node, member.mode & 0o7777))
    else:
        _replace(tree, spot, node)
    return 1


def _replace(tree: Tree, spot: Spot, node: Node) -> None:
    if spot.node is not None and spot.node.kind != "file":
        tree.forget(tree.take_away(spot))
        spot = Spot(spot.path, spot.parent, spot.name, None)
    tree.put(spot, node)


def _read(tree: Tree, tar: tarfile.TarFile, member: tarfile.TarInfo, root: str) -> Node:
    if member.isdir():
        return Node("folder", 0o755)
    if member.issym():
        return Node("link", 0o777, target=member.linkname)
    if member.islnk():
        linked = tree.find(f"{root}/{member.linkname}", follow=False)
        if linked.node is None or linked.node.kind != "file" or not linked.path.startswith(root.rstrip("/") + "/"):
            raise _leads_out(member.linkname, root)
        return Node("file", linked.node.mode, data=linked.node.data)
    content = tar.extractfile(member)
    assert content is not None, "a regular member has content"
    return Node("file", member.mode & 0o7777, data=content.read(), modified=float(member.mtime))


def _leads_out(name: str, root: str) -> SandboxFileError:
    return SandboxFileError(f"{name!r} leads out of {root}", path=root, op="unpack")
