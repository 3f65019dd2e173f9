"""Sizes that nobody tuned take what was measured at others only where the code that was measured runs."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Device, DispatchWarning, shipped
from registry.arguments.traits import OrdinaryTraits
from registry.backends.inductor import InductorImplementation
from registry.dispatch import call_answers
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.resolve.first_choice import FirstChoice
from registry.dispatch.resolve.resolution import choices
from registry.dispatch.resolve.winners.evidence import WinnerEvidence
from registry.implementation import Implementation
from tuning_db import Store

from ...tiers import one_of_each

DIMS = {"cols": 16, "dtype": "float32"}


def who(dispatcher: Dispatcher, rows: int) -> tuple[str, str, dict[str, Any]]:
    """Step, implementation and config, checked against what really runs."""
    x = torch.randn(rows, 16)
    torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
    told = dispatcher.explain("softmax", x)
    return told.step, told.implementation, dict(told.config)


def test_what_binds_other_code_at_other_sizes_does_not_transfer() -> None:
    class Rebound(Implementation):
        def bind_untuned(self, *given: Any) -> None:
            return None

    class Says(Rebound):
        transfers = True

        def bind_untuned(self, *given: Any) -> None:
            return None

    assert Implementation.transfers
    assert not Rebound.transfers
    assert not InductorImplementation.transfers
    assert Says.transfers


def test_the_best_of_the_finals_that_transfers_takes_the_place_of_a_winner_that_does_not(
    dispatcher: Dispatcher, told: Any, publish: Any
) -> None:
    for one in (told("a.compiled", transfers=False), told("a.good"), told("a.slow"), told("a.fixed", transfers=False)):
        dispatcher.register(one)
    publish(
        {**DIMS, "rows": 8},
        "a.compiled",
        {"block": 1},
        baselines={"a.good": 1.4, "a.slow": 3.0, "a.fixed": 1.1},
        finals={"a.slow": {"block": 2}, "a.good": {"block": 4}, "a.fixed": {"block": 2}},
    )
    assert who(dispatcher, 8) == ("exact", "a.compiled", {"block": 1})
    assert who(dispatcher, 12) == ("nearest", "a.good", {"block": 4})
    found = dispatcher.explain("softmax", torch.randn(12, 16))
    assert found.median_us is None
    assert found.there_us == pytest.approx(12.5 * 1.4)
    story = str(found)
    assert "timed  not at this size; expected to be fast from 0.58 octaves away" in story
    assert "rows=8: it took 17.50 µs, a.compiled won with 12.50 µs" in story
    assert "a.compiled is made for each size, so that its time there says nothing about this one" in story
    others = {other.name: other.reasons[0] for other in found.others}
    assert others["a.slow"].endswith("it took 2.14 times as long in the finals of rows=8")
    assert "says nothing about this one" in others["a.fixed"]


def test_what_was_only_searched_is_known_with_its_configuration(
    dispatcher: Dispatcher, told: Any, publish: Any, store: Store
) -> None:
    from tuning_db import CandidateKey, Trial

    dispatcher.register(told("a.compiled", transfers=False))
    dispatcher.register(told("a.good"))
    decision = publish({**DIMS, "rows": 8}, "a.compiled", {"block": 1}, baselines={"a.good": 1.4})
    run = store.start_run(decision.environment)
    tried = {1: ("ok", 30.0, False), 2: ("ok", 17.5, False), 4: ("ok", 9.0, True), 8: ("wrong_result", 1.0, False)}
    store.add_trials(
        run,
        [
            Trial(
                decision.problem,
                CandidateKey("a.good", "1", {"block": block}),
                decision.environment,
                decision.protocol,
                status,
                median_us=us,
                censored=censored,
            )
            for block, (status, us, censored) in tried.items()
        ],
    )
    assert who(dispatcher, 12) == ("nearest", "a.good", {"block": 2})


@pytest.mark.parametrize(("rows", "name"), [(5, "left"), (7, "left"), (9, "right"), (13, "right"), (64, "right")])
@pytest.mark.few(2)
def test_between_two_tuned_problems_the_better_by_both_runs(
    dispatcher: Dispatcher, told: Any, publish: Any, rows: int, name: str
) -> None:
    dispatcher.register(told("a.left"))
    dispatcher.register(told("a.right"))
    publish({**DIMS, "rows": 4}, "a.left", {"block": 1}, baselines={"a.right": 9.0})
    publish({**DIMS, "rows": 16}, "a.right", {"block": 2}, baselines={"a.left": 9.0})
    assert who(dispatcher, rows)[:2] == ("nearest", f"a.{name}")


@pytest.mark.thorough
def test_the_nearer_winner_gives_way_to_the_farther_that_is_better_by_both(
    dispatcher: Dispatcher, told: Any, publish: Any
) -> None:
    dispatcher.register(told("a.steep"))
    dispatcher.register(told("a.flat"))
    publish({**DIMS, "rows": 16}, "a.flat", {"block": 1}, baselines={"a.steep": 9.0})
    publish({**DIMS, "rows": 64}, "a.steep", {"block": 2}, baselines={"a.flat": 1.01})
    assert who(dispatcher, 40) == ("nearest", "a.flat", {"block": 1})
    told_of = dispatcher.explain("softmax", torch.randn(40, 16))
    assert "better by both than a.steep, the winner of rows=64" in told_of.reason
    assert told_of.octaves == pytest.approx(1.32, abs=0.01)


@pytest.mark.thorough
def test_a_size_between_a_winner_that_transfers_and_one_that_does_not(
    dispatcher: Dispatcher, told: Any, publish: Any
) -> None:
    for one in (told("a.compiled", transfers=False), told("a.mma"), told("a.plain")):
        dispatcher.register(one)
    publish({**DIMS, "rows": 64}, "a.mma", {"block": 4}, baselines={"a.compiled": 2.2, "a.plain": 1.3})
    publish({**DIMS, "rows": 256}, "a.compiled", {"block": 1}, baselines={"a.mma": 1.35, "a.plain": 8.9})
    assert who(dispatcher, 128) == ("nearest", "a.mma", {"block": 4})
    assert dispatcher.explain("softmax", torch.randn(128, 16)).there_us == 12.5


def test_a_candidate_of_which_only_the_name_is_known_is_told_without_a_time(
    dispatcher: Dispatcher, told: Any, publish: Any
) -> None:
    dispatcher.register(told("a.compiled", transfers=False))
    dispatcher.register(told("a.good", blocks=lambda _: [2, 4]))
    publish({**DIMS, "rows": 8}, "a.compiled", {"block": 1}, baselines={"a.good": 1.4})
    assert who(dispatcher, 12) == ("nearest", "a.good", {"block": 2})
    found = dispatcher.explain("softmax", torch.randn(12, 16))
    assert (found.there_us, found.median_us) == (None, None)
    assert "a.good was not timed with this configuration, a.compiled won with 12.50 µs" in str(found)


def test_runners_of_another_source_are_not_taken(dispatcher: Dispatcher, told: Any, publish: Any) -> None:
    good = told("a.good")
    dispatcher.register(told("a.compiled", transfers=False))
    dispatcher.register(good)
    publish({**DIMS, "rows": 8}, "a.compiled", {"block": 1}, baselines={"a.good": 1.4}, finals={"a.good": {"block": 4}})
    good.source = "2"
    assert who(dispatcher, 12) == ("nearest", "a.good", {"block": 1})
    assert dispatcher.explain("softmax", torch.randn(12, 16)).there_us is None


def test_a_shipped_winner_brings_the_candidates_that_it_was_measured_against(
    dispatcher: Dispatcher, told: Any, publish: Any, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher.register(told("a.compiled", transfers=False))
    dispatcher.register(told("a.good"))
    publish({**DIMS, "rows": 8}, "a.compiled", {"block": 1}, baselines={"a.good": 1.4}, finals={"a.good": {"block": 4}})
    folder = tmp_path / "shipped"
    folder.mkdir()
    file = folder / shipped.file_name(Device.of("cpu").name)
    with file.open("w") as stream:
        store.export(stream, winners_only=True)
    assert file.read_text().count('"role":"candidate"') == 1
    monkeypatch.setenv("KERNEL_REGISTRY_SHIPPED", str(folder))
    monkeypatch.setenv("KERNEL_REGISTRY_DB", str(tmp_path / "another.db"))
    assert who(dispatcher, 12) == ("nearest", "a.good", {"block": 4})
    with Store.open(tmp_path / "another.db") as other, file.open() as lines:
        other.load(lines)
    monkeypatch.setenv("KERNEL_REGISTRY_SHIPPED", "0")
    dispatcher.reload()
    assert who(dispatcher, 12) == ("nearest", "a.good", {"block": 4})


@pytest.mark.parametrize("seed", one_of_each(range(6)))
def test_the_short_way_finds_what_the_long_way_finds(
    dispatcher: Dispatcher, told: Any, publish: Any, seed: int
) -> None:
    draw = random.Random(seed)
    names = ["a.compiled", "a.one", "a.two"]
    for name in names:
        dispatcher.register(told(name, transfers=name != "a.compiled"))
    for rows in draw.sample(range(1, 600), 7):
        winner, *rest = draw.sample([*names, "a.gone"], 4)
        ratios = {name: 1 + draw.random() * 3 for name in rest if draw.random() < 0.8}
        finals = {name: {"block": draw.choice([1, 2, 4])} for name in ratios if draw.random() < 0.5}
        publish({**DIMS, "rows": rows}, winner, {"block": draw.choice([1, 2, 4])}, baselines=ratios, finals=finals)
    plans, device = dispatcher.bound("softmax").plans, Device.of("cpu")
    op = plans.op

    def posed(rows: int) -> Any:
        return op.posing_in_family(OrdinaryTraits, None)(op.specs((torch.empty(rows, 16), -1)))

    first_choice = FirstChoice(plans.situation(posed(1), device))
    steps = set()
    for rows in draw.sample(range(1, 1200), 400):
        problem, misses = posed(rows), list[str]()
        first = next(choices(plans.situation(problem, device), None, misses))
        found = first_choice.choice(problem)
        assert found is not None
        assert found.choice_of(problem) == first
        assert not set(found.misses) - set(misses)
        steps.add(first.step)
    assert "nearest" in steps


def captured(dispatcher: Dispatcher, rows: int) -> str:
    x = torch.randn(rows, 16)
    torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
    return dispatcher.explain("softmax", x).implementation


def test_in_a_capture_the_best_that_is_in_memory_runs_and_nothing_is_read(
    dispatcher: Dispatcher, told: Any, publish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher.register(told("a.fast", capturable=False))
    dispatcher.register(told("a.other"))
    dispatcher.register(told("a.plain", any_size=True))
    publish({**DIMS, "rows": 8}, "a.fast", {"block": 1}, baselines={"a.plain": 1.4})
    publish({**DIMS, "rows": 9}, "a.other", {"block": 1})
    publish({**DIMS, "rows": 64}, "a.plain", {"block": 2})
    assert captured(dispatcher, 8) == "a.fast"
    monkeypatch.setattr(call_answers, "capturing", lambda tensors: True)
    monkeypatch.setattr(WinnerEvidence, "decision", lambda *given: (None, "not read"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert captured(dispatcher, 12) == "a.plain"
    missed = dispatcher.explain("softmax", torch.randn(12, 16)).misses
    assert any("a.other" in one and "not in memory" in one for one in missed)
    monkeypatch.undo()


def test_a_captured_reference_is_told_once_with_the_remedy(
    dispatcher: Dispatcher, told: Any, publish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher.register(told("a.tuned"))
    publish({**DIMS, "rows": 8}, "a.tuned", {"block": 1})
    monkeypatch.setattr(call_answers, "capturing", lambda tensors: True)
    with pytest.warns(DispatchWarning, match=r"reference is captured .* registry\.warmup") as warned:
        assert captured(dispatcher, 8) == captured(dispatcher, 9) == "reference"
    assert len(warned) == 1


BETWEEN = [*((m, "cuda.wgmma") for m in (24, 40, 80, 192, 384, 768)), (3000, "triton.dequantized")]


@pytest.mark.parametrize(("m", "expected"), BETWEEN)
@pytest.mark.few(1)
def test_shipped_winners_of_4_bit_products_between_tuned_lengths(
    m: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.learnt_defaults import GPUS
    from registry.discovery.catalog import Catalog
    from registry.dispatch.resolve.situation import Situation
    from registry.dispatch.resolve.winners import Winners

    monkeypatch.delenv("KERNEL_REGISTRY_SHIPPED")
    catalog, device = Catalog(), GPUS["h200"]
    op = catalog.op("gemm_int4")
    dims = {"m": m, "n": 28672, "k": 4096, "group_size": 128, "bits": 4, "symmetric": False, "dtype": "bfloat16"}
    winners = Winners().of(op, device)
    problem = op.problem_of(dims)
    first = next(choices(Situation(op, problem, device, catalog.implementations(op.name), winners), None, []))
    assert first.step == "nearest"
    assert first.candidate is not None
    assert first.candidate.implementation.name == expected
