"""Each cheat that a GPU can run has its expected end in tests/gpu: whoever adds one on a CPU is told at once."""

from tests.gpu.expected_of_cheats import KNOWN, ON_CPUS, VENDORS_ON_GPUS, loaded, offered


def test_the_end_of_each_cheat_on_a_gpu_is_expected() -> None:
    assert offered(loaded(*ON_CPUS)) == {name for name in KNOWN if not name.startswith(VENDORS_ON_GPUS)}
