"""Trees in memory as tar streams."""

from __future__ import annotations

import io
import posixpath
import tarfile

from corral.backends.memory.tree import READ, FileTree, Node, Spot
from corral.errors import SandboxFileError
from corral.inside.tars.inflating import Inflated
from corral.inside.tars.reading import BrokenArchiveError, Member, MemberReader

_TYPES = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}


def pack(tree: FileTree, path: str) -> bytes:
    """A file or folder as a tar, with relative names. FIFOs and devices are left out."""
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


def _add(tree: FileTree, tar: tarfile.TarFile, name: str, node: Node) -> None:
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


def unpack(tree: FileTree, path: str, archive: bytes) -> int:
    """Unpack a tar below a folder; returns the number of members. Raises: as `AsyncFiles.unpack`."""
    tree.make_folders(path)
    root = tree.existing(path)[0]
    modes: list[tuple[Node, int]] = []
    count = 0
    reader = MemberReader(Inflated([archive]).read)
    try:
        for member in reader:
            content = bytearray()
            for offset, piece in reader.content(member):
                content += bytes(offset - len(content)) + piece
            content += bytes(member.size - len(content))
            count += _lay_down(tree, member, bytes(content), root, modes)
    except (BrokenArchiveError, MemoryError) as error:
        raise SandboxFileError(f"{path}: bad archive: {error}", path=path, op="unpack") from error
    for node, mode in modes:  # last: a read-only folder must be filled first
        node.mode = mode
    return count


def _lay_down(tree: FileTree, member: Member, content: bytes, root: str, modes: list[tuple[Node, int]]) -> int:
    parts = [part for part in member.name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _leads_out(member.name, root)
    if member.kind == "other":
        return 0
    if not parts:
        modes.append((tree.existing(root)[1], member.mode))
        return 1
    folder = "/".join([root.rstrip("/"), *parts[:-1]])
    tree.make_folders(folder)
    spot = tree.find(f"{folder}/{parts[-1]}", follow=False)
    if not f"{spot.path}/".startswith(f"{root.rstrip('/')}/"):
        raise _leads_out(member.name, root)
    node = spot.node
    if node is None or node.kind != "folder" or member.kind != "folder":
        node = _make_node(tree, member, content, root)
        if spot.node is not None and spot.node.kind != "file":
            tree.forget(tree.take_away(spot))
            spot = Spot(spot.path, spot.parent, spot.name, None)
        tree.put(spot, node)
    if member.kind == "folder":
        modes.append((node, member.mode))
    return 1


def _make_node(tree: FileTree, member: Member, content: bytes, root: str) -> Node:
    if member.kind == "folder":
        return Node("folder", 0o755)
    if member.kind == "link":
        return Node("link", 0o777, target=member.target)
    if member.kind == "hard link":
        linked = tree.find(f"{root}/{member.target}", follow=False)
        if linked.node is None or linked.node.kind != "file" or not linked.path.startswith(root.rstrip("/") + "/"):
            raise _leads_out(member.target, root)
        return Node("file", linked.node.mode, data=linked.node.data)
    return Node("file", member.mode, data=content, modified=member.mtime)


def _leads_out(name: str, root: str) -> SandboxFileError:
    return SandboxFileError(f"{name!r} leads out of {root}", path=root, op="unpack")
