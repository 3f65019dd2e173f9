"""Which tests go to one process of a run, by what they share, and which go first."""

from __future__ import annotations

from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

TOGETHER = {
    "compilers": (
        "tests/backends/",
        "tests/dispatch/compiled/",
        "tests/dispatch/hit/test_lists.py",
        "tests/dispatch/test_calls.py",
        "tests/dispatch/torch_side/",
        "tests/dispatch/test_untuned_sizes.py",
        "tests/integrations/torch_compile/",
        "tests/plugins/test_cross_entropy.py",
        "tests/plugins/test_linear_cross_entropy.py",
        "tests/plugins/test_torch.py",
    ),
    "tuner": ("tests/adversarial/", "tests/fleet/", "tests/tuner/"),
    "commands": ("tests/cli/", "tests/test_public.py"),
    "databases": ("tests/tuning_db/",),
    "models": (
        "tests/benchmarks/test_models.py",
        "tests/benchmarks/test_training.py",
        "tests/benchmarks/test_untuned_step.py",
        "tests/integrations/hf_kernels/",
        "tests/integrations/transformers/",
        "tests/test_docs.py",
        "tests/test_names_in_strings.py",
    ),
}
"""What one process of a run takes as a whole, since the first test of it costs seconds more: an import of Inductor
or of transformers, a template of workers, or a server of PostgreSQL. All other tests go by files, whose fixtures are
then made once. Each is less than a third of all.
"""
LONG = (
    "tests/test_example_acme.py",
    "tests/test_example_numba.py",
    "tests/test_from_nothing.py",
    "tests/plugins/test_triton",
)
"""Files that would keep one process busy when the others have ended."""


def group_of(nodeid: str) -> str:
    """The name of what goes to one process with this test: one of ``TOGETHER``, or its file."""
    file = Path(nodeid.partition("::")[0]).as_posix()
    return next((name for name, starts in TOGETHER.items() if file.startswith(starts)), file)


def place_of(nodeid: str) -> int:
    """Its place among the other tests: what goes together, long files, the rest."""
    group = group_of(nodeid)
    return list(TOGETHER).index(group) if group in TOGETHER else len(TOGETHER) + (not group.startswith(LONG))


class SharingScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out groups, in the order of the tests."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
