"""A plugin file is described by a sandbox, and what it tells is data that is checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.device import Device
from registry.discovery.answers import refusals
from registry.discovery.catalog import Catalog
from registry.errors import PluginError, UnsupportedError
from registry.problem import Problem
from registry.sandbox.limits import SandboxLimits
from registry.sandbox.tuning.description import ToldAnswers, ToldImplementation, described, dims_key
from registry.sandbox.tuning.description_child import MOST_CONFIGS, told_configs
from registry.sandbox.tuning.stand_in_catalog import StandInCatalog
from registry.space import Space

from ..sandboxing import needs_bubblewrap
from .stranger import CHUNKS, plugin, was_run

CPU = Device.of("cpu")
LIMITS = SandboxLimits()


def square(n: int) -> Problem:
    return Catalog().op("square").problem_of({"n": n, "dtype": "float32"})


def stands_for(file: Path, name: str, answers: ToldAnswers) -> ToldImplementation:
    return ToldImplementation(file, "square", name, frozenset({"cpu"}), {dims_key(square(100)): answers})


def test_a_large_space_is_told_in_part_with_the_default_first() -> None:
    space = Space(A=list(range(100)), B=list(range(100)))
    told = told_configs(space, {"A": 7, "B": 9})
    assert told[0] == {"A": 7, "B": 9}
    assert MOST_CONFIGS / 2 < len(told) <= MOST_CONFIGS
    assert {one["A"] for one in told[1:]} >= {0, 50, 99}
    assert told_configs(Space(), {}) == [{}]


def test_a_stand_in_answers_what_was_told_and_never_runs(tmp_path: Path) -> None:
    file = tmp_path / "kernels.py"
    file.write_text("import registry\n")
    told = ToldAnswers(configs=({"A": 4, "B": "x"}, {"A": 2, "B": "y"}), of=2, preference=-1.0)
    catalog = StandInCatalog(Catalog(), [stands_for(file, "mine.one", told)])
    one, here = catalog.implementation("square", "mine.one"), square(100)
    assert one.default(here, CPU) == {"A": 4, "B": "x"}
    assert list(one.space(here, CPU)) == [{"A": 4, "B": "x"}, {"A": 2, "B": "y"}]
    assert one.space(here, CPU).violations({"A": 4, "B": "y"}) == ["one that its plugin file told"]
    assert list(one.unsupported(square(200), CPU)) == ["its plugin file was not asked about this problem"]
    before = one.fingerprint()
    file.write_text("import registry, os\n")
    other = StandInCatalog(Catalog(), [stands_for(file, "mine.one", told)]).implementation("square", "mine.one")
    assert other.fingerprint() != before
    native = catalog.implementation("square", "torch.native")
    assert native.fingerprint() == Catalog().implementation("square", "torch.native").fingerprint()
    for each in (one, native):
        with pytest.raises(UnsupportedError, match="runs in a sandbox only"):
            each.bind(here, {}, CPU, None)  # type: ignore[arg-type]
    assert catalog.files == ()
    assert catalog.plugin_files() == {"square/mine.one": str(file)}


def test_a_stand_in_runs_those_of_the_values_that_an_op_got_later_at_which_it_was_told_to(tmp_path: Path) -> None:
    op, file = Catalog().op("kv_cache_append"), tmp_path / "kernels.py"
    file.write_text("import registry\n")
    dims = {"tokens": 3, "kv_heads": 2, "head_dim": 16, "block_size": 4, "dtype": "float32"}
    int8, plain = (op.problem_of({**dims, "kv_dtype": kind}) for kind in ("int8", "auto"))
    runs, refuses = ToldAnswers(configs=({},), of=1), ToldAnswers(unsupported=("not this one",))
    for answers, taken in (((runs, runs), True), ((refuses, runs), False)):
        told = dict(zip((dims_key(int8), dims_key(plain)), answers, strict=True))
        one = ToldImplementation(file, op.name, "mine.one", frozenset({"cpu"}), told)
        catalog = StandInCatalog(Catalog(), [one])
        assert (refusals(catalog.implementation(op.name, "mine.one"), int8, CPU) == ()) is taken
        assert not refusals(catalog.implementation(op.name, "mine.one"), plain, CPU)
        assert not refusals(catalog.implementation(op.name, "torch.native"), int8, CPU)


def test_a_name_that_is_taken_or_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kernels.py"
    file.write_text("")
    for name, fault in (("torch.native", "is taken"), ("no name", "expected plugin.variant")):
        with pytest.raises(PluginError, match=fault):
            StandInCatalog(Catalog(), [stands_for(file, name, ToldAnswers(configs=({},)))])


@needs_bubblewrap
@pytest.mark.thorough
def test_a_plugin_file_is_asked_in_a_sandbox_alone(tmp_path: Path) -> None:
    file = plugin(tmp_path, CHUNKS)
    (told,) = described(file, [square(100), square(1 << 21)], CPU, LIMITS)
    assert (told.op, told.name, told.devices) == ("square", "stranger.chunks", frozenset({"cpu"}))
    small, large = (told.answers[dims_key(square(n))] for n in (100, 1 << 21))
    assert small.configs == ({"CHUNKS": 4}, {"CHUNKS": 2})
    assert large.unsupported == ("more than a million elements\\x1b[31m",)
    assert not was_run(tmp_path)


LIARS = {
    "configurations of nothing": '{"implementations": [], "configs": [], "preference": 0, "of": 0}',
    "a number": "7",
    "lists in lists": "[" * 20_000,
    "a configuration of lists": '{"configs": [{"A": [1]}], "of": 1, "preference": -1}',
    "other parameters": '{"configs": [{"A": 1}, {"B": 1}], "of": 2, "preference": -1}',
    "infinity": '{"configs": [{"A": Infinity}], "of": 1, "preference": -1}',
    "control characters": '{"configs": [{"A": "\\u001b[2J"}], "of": 1, "preference": -1}',
    "no name": '{"configs": [{"A B": 1}], "of": 1, "preference": -1}',
    "reasons that are none": '{"unsupported": [7]}',
}
# the plugin has the process for itself: it answers in the place of the program that imported it
TAKES_OVER = """
from registry.sandbox import wire
from registry.sandbox.tuning import description_child

send = wire.send

def lies(end, message):
    if "configs" in message.get("told", "") or "unsupported" in message.get("told", ""):
        message = {{"ok": True, "told": {answer!r}}}
    send(end, message)

wire.send = lies
"""


@needs_bubblewrap
@pytest.mark.thorough
@pytest.mark.parametrize("which", LIARS)
def test_an_answer_that_is_none_is_refused(which: str, tmp_path: Path) -> None:
    file = plugin(tmp_path, CHUNKS, TAKES_OVER.format(answer=LIARS[which]))
    with pytest.raises(PluginError, match="is no description of a plugin"):
        described(file, [square(100)], CPU, LIMITS)


@needs_bubblewrap
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nothing_of_this_name\n", "nothing_of_this_name"),
        ("import os\nos._exit(3)\n", "its process ended: exit code 3"),
        (
            "import registry\nfrom dataclasses import replace\nfrom registry.contracts import SQUARE\n"
            "@registry.defines\ndef ops():\n"
            "    return [replace(SQUARE, name='mine::cube', schema=SQUARE.schema.replace('square', 'mine::cube'))]\n",
            "a file may implement ops only",
        ),
    ],
    ids=["import", "exit", "op"],
)
def test_a_file_that_cannot_take_part_is_told_with_its_reason(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(PluginError, match=told):
        described(file, [square(100)], CPU, LIMITS)
