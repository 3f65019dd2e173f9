"""Registers and bytes of stack of the kernel in a CUDA binary (an ELF file), read without the CUDA toolkit."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_REGISTERS = 0x2F
_FRAME_BYTES = 0x11
_WORD, _HALF_OR_BYTE = 0x04, (0x01, 0x02, 0x03)


def resources(cubin: bytes) -> dict[str, int]:
    """``registers`` a thread and ``spill_bytes`` (stack frame a thread) of the only or largest kernel; {} if unknown.

    Source of the layout: the section ``.nv.info`` is a list of (format, attribute, size, payload); the payload of
    ``EIATTR_REGCOUNT`` and ``EIATTR_FRAME_SIZE`` is (symbol, value), as ``cuobjdump -elf`` shows.
    """
    if cubin[:4] != b"\x7fELF" or cubin[4] != 2:
        return {}
    found: dict[str, int] = {}
    for name, section in _sections(cubin):
        if name != b".nv.info":
            continue
        for attribute, payload in _attributes(section):
            if attribute in (_REGISTERS, _FRAME_BYTES) and len(payload) == 8:
                key = "registers" if attribute == _REGISTERS else "spill_bytes"
                found[key] = max(found.get(key, 0), struct.unpack("<II", payload)[1])
    return found


def _sections(elf: bytes) -> Iterator[tuple[bytes, bytes]]:
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + place * size) for place in range(count)]
    strings = headers[names][4]
    for name, _, _, _, offset, length in headers:
        start = strings + name
        yield elf[start : elf.index(b"\0", start)], elf[offset : offset + length]


def _attributes(section: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + 4 <= len(section):
        kind, attribute, size = struct.unpack_from("<BBH", section, place)
        place += 4
        if kind == _WORD:
            yield attribute, section[place : place + size]
            place += size
        elif kind not in _HALF_OR_BYTE:
            return
