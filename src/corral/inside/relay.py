"""A connection to a port of the loopback, from inside: what comes on the standard input goes to the port, and what the
port sends to the standard output.

First a line is written: `+` for a connection, `-` if nothing listens, or `!` and the error's number. It ends when the
other side has finished.
"""

from __future__ import annotations

import errno
import os
import select
import socket

_PIECE_BYTES = 65536
_CONNECT_SECONDS = 10.0
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def relay_port(port: int) -> None:
    """Connect to 127.0.0.1, or to ::1 if nothing listens there, and pass bytes on."""
    answer = b"-\n"
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as connection:
                connection.settimeout(_CONNECT_SECONDS)
                connection.connect((address, port))
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                os.write(1, b"+\n")
                _relay(connection)
                return
        except OSError as error:
            if error.errno in _NO_ROOM:
                answer = b"!%d\n" % error.errno
    os.write(1, answer)


def _relay(connection: socket.socket) -> None:
    connection.setblocking(False)
    os.set_blocking(1, False)
    ours, theirs = b"", b""
    is_open = True
    while True:
        readers = [each for each, wanted in ((0, is_open and not ours), (connection.fileno(), not theirs)) if wanted]
        writers = [each for each, held in ((connection.fileno(), ours), (1, theirs)) if held]
        readable, writable, _ = select.select(readers, writers, [])
        try:
            if 0 in readable:
                ours = os.read(0, _PIECE_BYTES)
                if not ours:
                    is_open = False
                    connection.shutdown(socket.SHUT_WR)
            if connection.fileno() in writable:
                ours = ours[connection.send(ours) :]
            if connection.fileno() in readable:
                theirs = connection.recv(_PIECE_BYTES)
                if not theirs:
                    return
            if 1 in writable:
                theirs = theirs[os.write(1, theirs) :]
        except BlockingIOError:
            pass  # somebody else has read or written in between
        except OSError:
            return
