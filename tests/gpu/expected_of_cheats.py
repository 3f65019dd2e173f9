"""The cheats that run on a GPU, the problems they are offered for, and how each of them must end."""

from __future__ import annotations

from pathlib import Path

from registry.discovery.catalog import Catalog
from registry.problem import Problem

HERE = Path(__file__).parent
ON_CPUS_TOO = HERE.parent / "adversarial"
ON_CPUS = tuple(
    ON_CPUS_TOO / f"{name}.py"
    for name in (
        "cheats",
        "cheats_that_return",
        "cheats_in_timing",
        "cheats_at_other_calls",
        "cheats_from_a_size_on",
        "cheats_that_remember",
        "cheats_that_are_late",
        "cheats_in_the_process",
    )
)
"""Files of cheats that run on any device."""
ON_GPUS = tuple(
    HERE / f"{name}.py"
    for name in ("cheats_on_streams", "cheats_in_rounding", "cheats_in_triton", "cheats_that_begin_early")
)
"""Files of cheats that cannot be loaded without a GPU."""
_VENDORS = ("cheat.", "return.", "timing.", "other.", "large.", "late.", "process.")
VENDORS_ON_GPUS = ("stream.", "rounding.", "scratch.", "early.")
PROBLEMS = (
    # a million elements, and a multiple of nothing but two
    Problem("square", {"n": 2**20 + 2, "dtype": "float32"}),
    Problem("gelu", {"n": 5_000, "dtype": "float32", "approximate": "tanh"}),
    # those that remember inputs have it to themselves
    Problem("gelu", {"n": 5_000, "dtype": "float32", "approximate": "none"}),
    Problem("rms_norm", {"rows": 4, "cols": 4096, "dtype": "bfloat16"}),
    # so many rows that two orders of addition never agree in all of them
    Problem("softmax", {"rows": 1024, "cols": 4096, "dtype": "float32"}),
    Problem("vector_add", {"n": 2**20 + 2, "dtype": "float32"}),
)

RIGHT = {
    "square": (
        "cheat.honest",
        "cheat.honest_function",
        "return.honest",
        "timing.honest",
        "other.any_size",
        "large.honest",
        "late.honest",
        "late.honest_function",
        "process.honest",
        "process.function",
        "process.executor",
        "process.waiting_child",
        "stream.joined",
        "scratch.honest",
        "early.honest_cuda",
        "early.honest_triton",
        "early.honest_sum_cuda",
        "early.honest_sum_triton",
    ),
    "gelu": ("cheat.declared", "timing.gelu", "timing.precise", "timing.precise_function", "process.gelu"),
    "rms_norm": ("cheat.norm", "return.norm"),
    "softmax": ("rounding.declared_atomics", "large.softmax", "other.softmax", "other.own_strides"),
    "vector_add": ("large.add",),
}
REFUSED: dict[str, str | tuple[str, ...]] = {
    "cheat.stale_memory": "wrong_result",
    "cheat.three_buffers": "wrong_result",
    "cheat.buffer": "wrong_result",
    "cheat.alias": "wrong_result",
    "cheat.beside": "wrong_result",
    "cheat.last_output": "wrong_result",
    "cheat.pointer": "wrong_result",
    "cheat.peek": "wrong_result",
    "cheat.skips": "wrong_result",
    "cheat.first_calls": "wrong_result",
    "cheat.waits": "wrong_result",
    "cheat.zeroes": "wrong_result",
    "cheat.later_copies": "wrong_result",
    "cheat.bfloat16": "wrong_result",
    "cheat.tf32": "wrong_result",
    "cheat.last_block": "wrong_result",
    "cheat.unwritten": "wrong_result",
    "cheat.one_nan": "wrong_result",
    "cheat.dtype": "wrong_result",
    "cheat.strides": "wrong_result",
    "cheat.odd": "wrong_result",
    "cheat.strided": "wrong_result",
    "cheat.unaligned": "wrong_result",
    "cheat.raises_odd": "error",
    "cheat.clock": "error",
    "cheat.events": "error",
    "cheat.comparison": "error",
    "cheat.statistics": "error",
    "cheat.bounds": "error",
    "cheat.settings": "error",
    "cheat.undeclared": "nondeterministic",
    "cheat.accumulates": "wrong_result",
    "return.lazy": "wrong_result",
    "return.lazy_later": "wrong_result",
    # torch itself may refuse to copy it in inference mode
    "return.lazy_middle": ("wrong_result", "error"),
    "return.subclass": "wrong_result",
    "return.functional": "wrong_result",
    "return.negation": "wrong_result",
    "return.lazy_copy": "wrong_result",
    "return.patched": "wrong_result",
    "return.sparse": "wrong_result",
    "return.input_at_first": "wrong_result",
    "return.view_at_first": "wrong_result",
    "return.prepared": "error",
    "return.prepared_beside": "error",
    "return.kept": ("wrong_result", "error"),
    "timing.peeks": "wrong_result",
    "timing.peeks_elsewhere": "wrong_result",
    "timing.peeks_at_inputs": "wrong_result",
    "timing.peeks_at_outputs": "wrong_result",
    "timing.objects": "wrong_result",
    "timing.versions": "wrong_result",
    "timing.collection": "wrong_result",
    "timing.in_a_row": "wrong_result",
    "timing.some_calls": "wrong_result",
    "other.bound_size": "wrong_result",
    "other.first_size": "wrong_result",
    "other.smaller_size": "error",
    "other.known_sizes": "wrong_result",
    "other.trained": "wrong_result",
    "other.versions": "error",
    "other.workspace": "wrong_result",
    "other.kept_strides": "wrong_result",
    "other.kept_rows": "wrong_result",
    "other.transposed": "wrong_result",
    "other.two_eps": "wrong_result",
    "large.workspace": "wrong_result",
    "large.workspace_beyond": "wrong_result",
    "large.strided_workspace": "wrong_result",
    "large.vectors": "wrong_result",
    "large.raises": "error",
    "large.unaligned": "wrong_result",
    "large.first_strides": "wrong_result",
    "large.second_strides": "wrong_result",
    "large.strides_beyond": "wrong_result",
    "large.sliced": "wrong_result",
    "large.overflows_beyond": "wrong_result",
    "large.overflows_below": "wrong_result",
    "process.dispatch_mode": "error",
    "process.function_mode": "error",
    "process.operator": "error",
    "process.puts_back": "error",
    "process.reference": "error",
    "process.functional": "error",
    "process.secrets": "error",
    "process.rival": "error",
    "process.profile": "error",
    "process.timer": "error",
    "process.cores": "error",
    "process.code": "error",
    "process.constants": "error",
    "process.no_settings": "error",
    "process.onednn": "error",
    "process.thresholds": "error",
    "process.tolerance": "error",
    "process.warnings": "error",
    "process.busy_thread": "error",
    "process.child": "error",
    "process.depth": "error",
    "process.numpy": "error",
    "process.autocast": "error",
    "process.default_device": "error",
    "process.variables": "error",
    "scratch.past": "wrong_result",
    "early.cuda": "wrong_result",
    "early.triton": "wrong_result",
    "early.stores_cuda": "wrong_result",
    "early.stores_triton": "wrong_result",
    "early.scratch_cuda": "wrong_result",
    "early.scratch_triton": "wrong_result",
    "rounding.atomics": "nondeterministic",
    "rounding.noise": "nondeterministic",
    "stream.other": "wrong_result",
    "stream.not_waited_for": "wrong_result",
    "stream.default": "wrong_result",
    "stream.left": "wrong_result",
    "stream.waits_at_first": "wrong_result",
    "stream.empty_graph": "wrong_result",
    "stream.counts": "wrong_result",
    "stream.cache": "error",
    # which of two runs the next user of that memory meets is a race
    "stream.freed_memory": ("wrong_result", "nondeterministic"),
}

RIGHT_BUT_SLOW = ("timing.finals", "timing.all_of_it", "timing.checksum")
"""Found out in the finals, or slower than the honest where no input comes twice in a row."""

BY_THE_HOST = ("cheat.checksum", "process.first_inputs")
"""They wait for the device at each call. The first is found out where its samples are too slow for inputs to change
between, the second where it is fast enough to be judged on inputs that nobody has met."""

REFUSED_OR_BEATEN = {
    "stream.checksum": "wrong_result",
    "timing.storage_version": "wrong_result",
    "timing.object": "wrong_result",
    "timing.object_ends": "wrong_result",
    "timing.attribute": "wrong_result",
    "timing.subset": "wrong_result",
    "late.half": "wrong_result",
    "late.middle": "wrong_result",
    "late.whole": "wrong_result",
    # memory that a function returns too early may hold an earlier result
    "late.function": ("wrong_result", "nondeterministic"),
    "late.function_middle": ("wrong_result", "nondeterministic"),
}
"""A graph computes all of it, or the host is so slow that calls too few are made to remember, or to be late."""

KNOWN = frozenset(
    {
        *REFUSED,
        *REFUSED_OR_BEATEN,
        *RIGHT_BUT_SLOW,
        *BY_THE_HOST,
        *(name for names in RIGHT.values() for name in names),
    }
)
"""Every name whose end is expected."""


def loaded(*plugins: Path) -> Catalog:
    """A catalog with the cheats of these files."""
    catalog = Catalog()
    for plugin in plugins:
        catalog.load_file(plugin)
    return catalog


def offered(catalog: Catalog) -> frozenset[str]:
    """Names of the cheats and their honest peers that a run over the problems tries on a GPU."""
    return frozenset(
        implementation.name
        for problem in PROBLEMS
        for implementation in catalog.implementations(problem.op)
        if implementation.name.startswith((*_VENDORS, *VENDORS_ON_GPUS)) and "cuda" in implementation.device_types
    )
