"""Packets of a sandbox are small and plain; anything else is refused, and nothing is unpickled."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.sandbox import wire


class Unpickled:
    """Runs something where it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.abort, ()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = wire.pair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize(
    "data",
    [pickle.dumps(Unpickled()), b"\xff\xfe", b"[1]", b'{"ok": {"deep": 1}}', b"[" * 50_000, b'{"n": 1}'],
    ids=["pickle", "bytes", "list", "nested", "deep", "number"],
)  # fmt: skip
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(wire.WireError, match="no message"):
        wire.answer(data)


def test_a_packet_that_is_too_long_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    theirs.send(b"x" * 100_000)
    with pytest.raises(wire.WireError, match="more than 65536 bytes"):
        wire.received_from_sandbox(ours)


def test_descriptors_that_a_sandbox_sends_are_not_taken(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    before = {each.name for each in Path("/proc/self/fd").iterdir()}
    with Path(os.devnull).open() as file:
        socket.send_fds(theirs, [b'{"ok": true}'], [file.fileno()] * 8)
    assert wire.answer(wire.received_from_sandbox(ours)) == {"ok": True}
    assert {each.name for each in Path("/proc/self/fd").iterdir()} == before


def test_an_answer_fits_one_request_alone(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    asked = [wire.run_request(3, 4) for _ in range(2)]
    assert asked[0][1] != asked[1][1]
    ours.send(asked[0][0])
    assert wire.received_by_sandbox(theirs) == (None, asked[0][1], 3, 4, -1)
