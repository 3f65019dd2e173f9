"""The filter refuses what it lists and nothing else, on each machine whose numbers are known."""

from __future__ import annotations

import struct

import pytest

from registry.sandbox.system_calls import ALLOWED, MACHINES, REFUSED, UNKNOWN_CALL, filter_program

NEW_USER, FORK = 0x10000000, 0x01200011


def answered(program: bytes, architecture: int, number: int, flags: int = 0) -> int:
    """What the kernel does with a call, by running the filter as it does."""
    steps = [struct.unpack_from("=HBBI", program, place) for place in range(0, len(program), 8)]
    held, place, memory = 0, 0, {0: number, 4: architecture, 16: flags}
    while True:
        code, then, otherwise, value = steps[place]
        place += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            held = memory[value]
        else:
            holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
            place += then if holds else otherwise


@pytest.mark.parametrize("machine", MACHINES)
def test_only_what_is_listed_is_refused(machine: str) -> None:
    told = MACHINES[machine]
    program = filter_program(machine)
    assert len(set(told.refused.values())) == len(told.refused)
    answers = {number: answered(program, told.architecture, number, FORK) for number in range(600)}
    assert {number for number, found in answers.items() if found == REFUSED} == set(told.refused.values())
    assert [number for number, found in answers.items() if found == UNKNOWN_CALL] == [told.clone3]
    assert set(answers.values()) == {ALLOWED, REFUSED, UNKNOWN_CALL}
    assert answered(program, told.architecture, told.clone, FORK | NEW_USER) == REFUSED
    assert answered(program, told.architecture, 0x40000000) == REFUSED
    assert answered(program, 0x40000003, 0) == REFUSED


def test_a_machine_that_is_not_known_has_no_filter() -> None:
    assert filter_program("vax") == b""
