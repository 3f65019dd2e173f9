"""The structures of the driver's virtual memory have the sizes and places that cuda.h gives them."""

from __future__ import annotations

import ctypes

from registry.sandbox.memory.cuda_memory import _Access, _Location, _Properties


def test_structures_are_laid_out_as_the_driver_reads_them() -> None:
    assert (ctypes.sizeof(_Location), ctypes.sizeof(_Properties), ctypes.sizeof(_Access)) == (8, 32, 12)
    places = {name: getattr(_Properties, name).offset for name, *_ in _Properties._fields_}
    assert places == {
        "type": 0, "handle_types": 4, "location": 8, "win32_metadata": 16, "compression": 24, "direct_rdma": 25,
        "usage": 26, "reserved": 28,
    }  # fmt: skip
    assert _Access.flags.offset == 8
