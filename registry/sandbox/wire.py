"""What goes between the trusted process and a sandbox: small packets, of plain data. Nothing is unpickled.

A packet is at most ``LARGEST`` bytes: JSON, or a request to run with its answer, which are of fixed size. A request
holds a number that nobody can foresee, and which its answer has to repeat.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
from collections.abc import Mapping
from typing import Any

LARGEST = 1 << 20
"""The most bytes of a packet: a message about slots tells thousands of shapes at most."""
_MOST_ANSWER = 1 << 16
_RUN = struct.Struct("<4s16sII")
_DONE = struct.Struct("<4s16s")
_RUN_MARK, _DONE_MARK = b"run!", b"done"

Packet = Mapping[str, Any]


class WireError(Exception):
    """A packet that is none: too long, no JSON, or of a wrong form."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, which keep packets apart."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LARGEST)
    return ends


def send(end: socket.socket, message: Packet, descriptor: int | None = None) -> None:
    """Send plain data, with an open file's descriptor if there is one."""
    data = json.dumps(message).encode()
    if len(data) > LARGEST:
        raise WireError(f"a packet of {len(data)} bytes, {LARGEST} at most")
    if descriptor is None:
        end.send(data)
    else:
        socket.send_fds(end, [data], [descriptor])


def run_request(first: int, count: int) -> tuple[bytes, bytes]:
    """A request to run ``count`` slots from ``first`` on, and the answer that says that it is done."""
    nonce = secrets.token_bytes(16)
    return _RUN.pack(_RUN_MARK, nonce, first, count), _DONE.pack(_DONE_MARK, nonce)


def received_by_sandbox(end: socket.socket) -> tuple[Packet | None, bytes, int, int, int]:
    """(message, answer to a request, its first slot, its count, a descriptor or -1), as the trusted side sent it.

    Ends the process where the other side has gone.
    """
    data, descriptors, _, _ = socket.recv_fds(end, LARGEST, 1)
    if not data:
        os._exit(0)
    if len(data) == _RUN.size and data[:4] == _RUN_MARK:
        _, nonce, first, count = _RUN.unpack(data)
        return None, _DONE.pack(_DONE_MARK, nonce), first, count, -1
    return json.loads(data), b"", 0, 0, descriptors[0] if descriptors else -1


def received_from_sandbox(end: socket.socket) -> bytes:
    """A packet that a sandbox sent, b"" at its end. Raises WireError for one that is too long."""
    data, _, flags, _ = end.recvmsg(_MOST_ANSWER)
    if flags & socket.MSG_TRUNC:
        raise WireError(f"it sent a packet of more than {_MOST_ANSWER} bytes")
    return data


def answer(data: bytes) -> dict[str, str | bool]:
    """The message of a sandbox: an object of texts and truth values. Raises WireError for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise WireError(f"it sent what is no message: {data[:60]!r}") from None
    if not isinstance(found, dict) or not all(isinstance(one, str | bool) for one in found.values()):
        raise WireError(f"it sent what is no message: {data[:60]!r}")
    return found
