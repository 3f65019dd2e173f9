"""The filter refuses what it lists and nothing else, on each machine whose numbers are known."""

from __future__ import annotations

import struct

import pytest

from registry.sandbox.system_calls import _MACHINES, filter_program

REFUSED, ALLOWED = 0x00050001, 0x7FFF0000


def answered(program: bytes, architecture: int, number: int) -> int:
    """What the kernel does with a call, by running the filter as it does."""
    steps = [struct.unpack_from("=HBBI", program, place) for place in range(0, len(program), 8)]
    place = held = 0
    while True:
        code, then, otherwise, value = steps[place]
        place += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            held = architecture if value == 4 else number
        elif code == 0x15:
            place += then if held == value else otherwise
        else:
            place += then if held >= value else otherwise


@pytest.mark.parametrize("machine", _MACHINES)
def test_only_what_is_listed_is_refused(machine: str) -> None:
    architecture, listed = _MACHINES[machine]
    program = filter_program(machine)
    assert len(set(listed.values())) == len(listed)
    found = {number for number in range(600) if answered(program, architecture, number) == REFUSED}
    assert found == set(listed.values())
    assert answered(program, architecture, 0) == ALLOWED
    assert answered(program, architecture, 0x40000000) == REFUSED
    assert answered(program, 0x40000003, 0) == REFUSED


def test_a_machine_that_is_not_known_has_no_filter() -> None:
    assert filter_program("vax") == b""
