"""Prepared arguments: made once, remade when their source changes, dropped with it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch

from registry import (
    Config,
    Device,
    DispatchWarning,
    Implementation,
    InvalidArgumentError,
    InvalidDefinitionError,
    Problem,
)
from registry.artifact import Built
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.dispatch.plans import prepared, prepared_cache, prepared_hit
from registry.dispatch.plans.prepared import forget_prepared, prepared_bytes
from registry.errors import NotReadyError
from registry.implementation import Run


class Doubled(Implementation):
    """rms_norm over twice the weight, which is prepared."""

    op = "rms_norm"
    device_types = frozenset({"cpu"})

    def __init__(self, name: str, as_view: bool = False) -> None:
        self.name = name
        self.made = 0
        self.seen: list[torch.Tensor] = []
        self._as_view = as_view

    def prepared(self, problem: Problem, config: Config) -> dict[str, tuple[str, ...]]:
        return {"doubled": ("weight",)}

    def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
        weight: torch.Tensor = values[0]
        self.made += weight.device.type != "meta"
        return weight.view(-1) if self._as_view else weight * 2

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        scale = 1 if self._as_view else 2

        def run(outputs: tuple[torch.Tensor, ...], values: tuple[Any, ...], scratch: tuple[torch.Tensor, ...]) -> None:
            x, _, eps, prepared = values
            self.seen = [prepared]
            outputs[0].copy_(torch.nn.functional.rms_norm(x, x.shape[-1:], prepared / scale, eps))

        return run


def expected(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


@pytest.fixture
def doubled(dispatcher: Dispatcher) -> Doubled:
    implementation = Doubled("a.doubled")
    dispatcher.register(implementation)
    return implementation


class Unmade(Doubled):
    """Names a prepared tensor that it does not make."""

    prepare = Implementation.prepare


def test_a_tensor_that_nobody_prepares_is_told_with_what_to_write(dispatcher: Dispatcher) -> None:
    dispatcher.register(Unmade("a.unmade"))
    refused = r"a\.unmade: prepared\(\) names 'doubled', but there is no prepare\(\) .*\n  write prepare\(self, name"
    with dispatcher.using(rms_norm="a.unmade"), pytest.raises(InvalidDefinitionError, match=refused):
        dispatcher.call("rms_norm", torch.randn(3, 8), torch.randn(8))


def test_made_once_for_views_other_rows_and_forms(dispatcher: Dispatcher, doubled: Doubled) -> None:
    weight = torch.randn(8)
    for rows in (3, 3, 5):
        x = torch.randn(rows, 8)
        for source in (weight, weight.detach(), weight.view(8)):
            torch.testing.assert_close(dispatcher.call("rms_norm", x, source), expected(x, weight))
    assert doubled.made == 1
    told = dispatcher.explain("rms_norm", torch.randn(3, 8), weight)
    assert told.prepared_bytes == 32
    assert "32 bytes of prepared arguments" in str(told)


def test_a_changed_weight_is_prepared_again(dispatcher: Dispatcher, doubled: Doubled) -> None:
    x, weight = torch.randn(3, 8), torch.randn(8)
    for _ in range(3):
        torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
        weight.detach().mul_(3)
    assert doubled.made == 3


def test_dropped_with_the_last_view_of_its_source(dispatcher: Dispatcher, doubled: Doubled) -> None:
    before = prepared_bytes()
    weight = torch.randn(8)
    view = weight[:]
    dispatcher.call("rms_norm", torch.randn(3, 8), weight)
    del weight
    gc.collect()
    assert prepared_bytes() == before + 32
    del view
    gc.collect()
    assert prepared_bytes() == before


def test_a_prepared_view_does_not_keep_its_source_alive(dispatcher: Dispatcher) -> None:
    dispatcher.register(Doubled("a.view", as_view=True))
    before = prepared_bytes()
    x, weight = torch.randn(3, 8), torch.randn(8)
    torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
    del weight
    gc.collect()
    assert prepared_bytes() == before


def test_many_weights_in_the_same_place_are_told_apart(dispatcher: Dispatcher, doubled: Doubled) -> None:
    x = torch.randn(3, 8)
    for _ in range(50):
        weight = torch.randn(8)
        torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
        del weight


def test_inference_tensors_are_answered_by_something_else(dispatcher: Dispatcher, doubled: Doubled) -> None:
    x = torch.randn(3, 8)
    with torch.inference_mode():
        weight = torch.randn(8)
        for _ in range(2):
            torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
            weight.mul_(2)
    assert doubled.made == 0


def test_a_changed_weight_refills_the_memory_that_a_graph_may_read(dispatcher: Dispatcher, doubled: Doubled) -> None:
    x, weight = torch.randn(3, 8), torch.randn(8)
    dispatcher.call("rms_norm", x, weight)
    read_by_a_graph = doubled.seen[0]
    weight.mul_(3)
    dispatcher.call("rms_norm", x, weight)
    assert doubled.seen[0].data_ptr() == read_by_a_graph.data_ptr()
    torch.testing.assert_close(read_by_a_graph, weight * 2)


def test_a_tensor_prepared_in_inference_mode_is_refilled_outside_of_it(
    dispatcher: Dispatcher, doubled: Doubled
) -> None:
    x, weight = torch.randn(3, 8), torch.randn(8)
    with torch.inference_mode():
        dispatcher.call("rms_norm", x, weight)
    weight.mul_(3)
    torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
    assert not doubled.seen[0].is_inference()
    assert doubled.made == 2


def test_forget_keeps_only_what_a_graph_reads(
    dispatcher: Dispatcher, doubled: Doubled, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_prepared()
    before = prepared_bytes()
    x, plain, captured = torch.randn(3, 8), torch.randn(8), torch.randn(8)
    for weight in (plain, captured):
        dispatcher.call("rms_norm", x, weight)
    with monkeypatch.context() as patch:
        patch.setattr(prepared, "_capturing", lambda tensor: True)
        # what has no streams cannot be captured: what is remembered of its tensors is not asked about it
        prepared._CACHE.empty_records()
        dispatcher.call("rms_norm", x, captured)
    memory = weakref.ref(doubled.seen.pop().untyped_storage())
    assert prepared_bytes() == before + 64
    dispatcher.forget()
    assert prepared_bytes() == before + 32
    captured.mul_(2)
    torch.testing.assert_close(dispatcher.call("rms_norm", x, captured), expected(x, captured))
    assert doubled.seen[0].untyped_storage() is memory()
    doubled.seen.clear()
    del captured, weight
    gc.collect()
    assert prepared_bytes() == before
    assert memory() is None


def test_what_is_remembered_is_not_looked_up(
    dispatcher: Dispatcher, doubled: Doubled, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Any] = []
    find = prepared_cache.PreparedCache.find

    def watched(cache: Any, *key: Any) -> Any:
        looked.append(key)
        return find(cache, *key)

    monkeypatch.setattr(prepared_cache.PreparedCache, "find", watched)
    x, weights = torch.randn(3, 8), [torch.randn(8) for _ in range(3)]
    for weight in weights:
        dispatcher.call("rms_norm", x, weight)
    assert looked
    looked.clear()
    for weight in weights:
        torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
        dispatcher.call("rms_norm", x, weight.detach())
    assert not looked


def test_a_remembered_weight_whose_memory_is_exchanged_is_prepared_again(
    dispatcher: Dispatcher, doubled: Doubled
) -> None:
    """torch counts no change for any of these."""
    x, weight = torch.randn(3, 8), torch.randn(8)
    for _ in range(2):
        torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
    version = weight._version
    former = weight.data
    weight.data = torch.randn(8)
    torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
    weight.data = torch.empty(0)
    del former
    weight.data = torch.randn(8)
    torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
    assert weight._version == version
    assert doubled.made == 3


def test_a_remembered_storage_that_is_emptied_and_filled_elsewhere_is_prepared_again(
    dispatcher: Dispatcher, doubled: Doubled
) -> None:
    x, weight = torch.randn(3, 8), torch.randn(8)
    for _ in range(2):
        dispatcher.call("rms_norm", x, weight)
    storage = weight.untyped_storage()
    storage.resize_(0)
    others = [torch.empty(8) for _ in range(64)]  # what was free is taken
    storage.resize_(32)
    with torch.autograd._unsafe_preserve_version_counter(weight):  # type: ignore[attr-defined]
        weight.normal_()
    torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
    del others


def test_a_change_through_another_plan_or_view_is_seen_by_all(dispatcher: Dispatcher, doubled: Doubled) -> None:
    x, wide, weight = torch.randn(3, 8), torch.randn(5, 8), torch.randn(8)
    for _ in range(3):
        for given in (x, wide):
            torch.testing.assert_close(dispatcher.call("rms_norm", given, weight), expected(given, weight))
        weight.view(2, 4).mul_(3)
    assert doubled.made == 3


def test_implementations_of_one_name_do_not_share(dispatcher: Dispatcher, doubled: Doubled) -> None:
    class Tripled(Doubled):
        def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
            self.made += values[0].device.type != "meta"
            return values[0] * 3  # type: ignore[no-any-return]

        def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
            def run(outputs: tuple[torch.Tensor, ...], values: tuple[Any, ...], scratch: Any) -> None:
                x, _, eps, tripled = values
                outputs[0].copy_(torch.nn.functional.rms_norm(x, x.shape[-1:], tripled / 3, eps))

            return run

    other = Dispatcher(Catalog(entry_points=()))
    other.register(Tripled("a.doubled"))
    x, weight = torch.randn(3, 8), torch.randn(8)
    for one in (dispatcher, other, dispatcher):
        torch.testing.assert_close(one.call("rms_norm", x, weight), expected(x, weight))


def test_a_weight_may_die_while_another_is_prepared(dispatcher: Dispatcher) -> None:
    """The finalizer of a storage runs wherever garbage is collected, also where nothing may wait."""
    before = prepared_bytes()
    weights = [torch.randn(8) for _ in range(2)]
    x = torch.randn(3, 8)

    class Meanwhile(Doubled):
        def prepare(self, name: str, values: tuple[Any, ...], problem: Problem, config: Config) -> torch.Tensor:
            if values[0].device.type != "meta" and self.made:
                thread = threading.Thread(target=weights.clear)
                thread.start()
                thread.join(timeout=20)
                assert not thread.is_alive(), "the finalizer waits for the thread that prepares"
            return super().prepare(name, values, problem, config)

    dispatcher.register(Meanwhile("a.meanwhile"))
    dispatcher.call("rms_norm", x, weights[0])
    last = torch.randn(8)
    torch.testing.assert_close(dispatcher.call("rms_norm", x, last), expected(x, last))
    assert prepared_bytes() == before + 32


def test_weights_of_inference_mode_do_not_bind_ordinary_ones(dispatcher: Dispatcher, told: Any) -> None:
    doubled = Doubled("a.doubled")
    dispatcher.register(doubled)
    dispatcher.register(told("a.plain", -9.0, op="rms_norm", result=lambda x, weight, eps: expected(x, weight)))
    x = torch.randn(3, 8)
    with torch.inference_mode():
        foreign = torch.randn(8)
    explanation = dispatcher.explain("rms_norm", x, foreign)
    assert explanation.implementation == "a.plain"
    assert any("a.doubled() is not ready" in why and "inference mode" in why for why in explanation.misses)
    for _ in range(2):
        torch.testing.assert_close(dispatcher.call("rms_norm", x, foreign), expected(x, foreign))
    assert dispatcher.bound("rms_norm").misses == 1
    weight = torch.randn(8)
    dispatcher.call("rms_norm", x, weight)
    assert dispatcher.explain("rms_norm", x, weight).implementation == "a.doubled"
    assert doubled.made == 1


def test_what_stood_in_for_a_candidate_that_was_not_ready_is_not_kept(dispatcher: Dispatcher, told: Any) -> None:
    moody = told("a.moody", 5.0, run_fault=NotReadyError("not now"))
    dispatcher.register(moody)
    dispatcher.register(told("a.steady"))
    x = torch.randn(4, 8)
    for _ in range(2):
        torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
    moody._behaviour["run_fault"] = None
    dispatcher.call("softmax", x)
    assert len(moody.runs) == 1
    assert dispatcher.explain("softmax", x).implementation == "a.moody"


def test_a_plan_that_is_not_ready_on_a_hit_gives_way(dispatcher: Dispatcher, told: Any) -> None:
    moody, steady = told("a.moody", 5.0), told("a.steady")
    dispatcher.register(moody)
    dispatcher.register(steady)
    x = torch.randn(4, 8)
    dispatcher.call("softmax", x)
    moody._behaviour["run_fault"] = NotReadyError("not now")
    torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
    dispatcher.catalog.register(Doubled("a.other"))
    with dispatcher.using(rms_norm="a.other"):
        torch.testing.assert_close(dispatcher.call("softmax", x), torch.softmax(x, -1))
    assert len(steady.runs) == 2


class Streams:
    """One thread's streams of a device, as dispatch asks for them."""

    def __init__(self) -> None:
        self.current = 0
        self.capturing = False
        self.asked = 0

    def of(self, device: torch.device) -> tuple[Any, Any]:
        return (lambda _: self.current), self._captures

    def _captures(self) -> bool:
        self.asked += 1
        return self.capturing


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    made = Streams()
    monkeypatch.setattr(prepared_hit, "streams_of", made.of)
    monkeypatch.setattr(prepared, "_capturing", lambda tensor: made.capturing)
    return made


def test_what_is_remembered_asks_for_a_capture_on_every_stream_that_can_be_captured(
    dispatcher: Dispatcher, doubled: Doubled, streams: Streams
) -> None:
    forget_prepared()
    x, weight = torch.randn(3, 8), torch.randn(8)
    for stream in (0, 7, 7):
        streams.current = stream
        dispatcher.call("rms_norm", x, weight)
    entry = next(iter(prepared._CACHE._entries.values()))
    assert not entry.captured
    streams.capturing = True
    dispatcher.call("rms_norm", x, weight)
    assert entry.captured
    streams.current, streams.capturing = 0, False
    asked = streams.asked
    dispatcher.call("rms_norm", x, weight)
    assert streams.asked == asked, "the default stream cannot be captured"
    assert doubled.made == 1


@pytest.mark.parametrize("captured", [False, True])
def test_each_stream_that_reads_is_made_known_once(
    dispatcher: Dispatcher, doubled: Doubled, streams: Streams, monkeypatch: pytest.MonkeyPatch, captured: bool
) -> None:
    forget_prepared()
    read: list[int] = []
    monkeypatch.setattr(prepared_cache.PreparedEntry, "read_here", lambda entry: read.append(streams.current))
    x, weight = torch.randn(3, 8), torch.randn(8)
    dispatcher.call("rms_norm", x, weight)
    read.clear()
    if captured:
        streams.current, streams.capturing = 9, True
        dispatcher.call("rms_norm", x, weight)
        streams.capturing = False
        assert not read, "a graph's memory lives as long as its weights"
    assert [entry.captured for entry in prepared._CACHE._entries.values()] == [captured]
    for stream in (0, 7, 8, 7, 0, 8):
        streams.current = stream
        dispatcher.call("rms_norm", x, weight)
    assert set(read) == {7, 8}
    count = len(read)
    for stream in (0, 7, 8):
        streams.current = stream
        dispatcher.call("rms_norm", x, weight)
    assert len(read) == count


def test_what_was_made_of_a_weight_dies_with_it(dispatcher: Dispatcher, doubled: Doubled) -> None:
    x, weight, lasting = torch.randn(3, 8), torch.randn(8), torch.randn(8)
    for _ in range(2):
        dispatcher.call("rms_norm", x, weight)
    memory = weakref.ref(doubled.seen.pop().untyped_storage())
    assert memory() is not None
    del weight
    assert memory() is None, "nobody needs to look at prepared tensors for that"
    torch.testing.assert_close(dispatcher.call("rms_norm", x, lasting), expected(x, lasting))


def test_a_weight_that_dies_while_its_thread_holds_the_lock_is_dropped_later(
    dispatcher: Dispatcher, doubled: Doubled
) -> None:
    """As garbage that is collected while a prepared tensor is put into the cache."""
    before = prepared_bytes()
    x, weight, other = torch.randn(3, 8), torch.randn(8), torch.randn(8)
    dispatcher.call("rms_norm", x, weight)
    memory = weakref.ref(doubled.seen.pop().untyped_storage())
    with prepared._CACHE._held():
        del weight
        assert memory() is not None
    torch.testing.assert_close(dispatcher.call("rms_norm", x, other), expected(x, other))
    assert memory() is None
    assert prepared_bytes() == before + 32


def test_a_thread_may_come_to_the_cache_from_within(dispatcher: Dispatcher, doubled: Doubled) -> None:
    """As a signal handler or a finalizer does that configures the registry."""
    x, weight = torch.randn(3, 8), torch.randn(8)
    dispatcher.call("rms_norm", x, weight)
    with prepared._CACHE._held():
        forget_prepared()
        torch.testing.assert_close(dispatcher.call("rms_norm", x, weight), expected(x, weight))
    assert doubled.made == 2


class Interrupted(dict[prepared_cache.StoragePlace, prepared_cache.PreparedEntry]):
    """A cache's entries; whoever drops one is interrupted by ``then``, before it and after it."""

    def __init__(
        self, entries: Mapping[prepared_cache.StoragePlace, prepared_cache.PreparedEntry], then: Callable[[], None]
    ) -> None:
        super().__init__(entries)
        self._then: Callable[[], None] | None = then

    def pop(self, *given: Any) -> Any:
        self._interrupt()
        found = super().pop(*given)
        self._interrupt()
        return found

    def _interrupt(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            then()
            self._then = then


class Maker:
    """Makes twice the source."""

    def __call__(self, values: tuple[Any, ...]) -> torch.Tensor:
        doubled: torch.Tensor = values[0] * 2
        return doubled


def filled(weights: Sequence[torch.Tensor], **attributes: Any) -> prepared_cache.PreparedCache:
    """A cache with two entries of each weight."""
    cache = prepared_cache.PreparedCache()
    for number, weight in enumerate(weights):
        for place in ("one", "other"):
            cache.put((place, number), Maker(), weight * 2, (weight,), (0,))
    for entry in cache._entries.values():
        for name, value in attributes.items():
            setattr(entry, name, value)
    return cache


def uses(cache: prepared_cache.PreparedCache) -> dict[str, Callable[[], Any]]:
    """What a signal handler may want of the cache."""
    return {
        "clear": cache.clear,
        "nbytes": cache.nbytes,
        "find": lambda: cache.find(("one", 0), (0,)),
        "put": lambda: cache.put(("new",), Maker(), torch.zeros(4), (torch.zeros(4),), (0,)),
    }


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("outer", ["clear", "nbytes", "find", "put"])
@pytest.mark.parametrize("inner", ["clear", "nbytes", "find", "put"])
@pytest.mark.few(8)
def test_a_thread_may_come_to_the_cache_while_it_drops_what_has_died(outer: str, inner: str, captured: bool) -> None:
    """Other weights die meanwhile, of which no entry may outlive its place among the dead."""
    weights, more = ([torch.randn(4) for _ in range(2)] for _ in range(2))
    cache = filled(weights + more, captured=captured)
    told: list[Any] = []

    def then() -> None:
        told.append(uses(cache)[inner]())
        elsewhere = threading.Thread(target=more.clear)
        elsewhere.start()
        elsewhere.join()

    cache._entries = Interrupted(cache._entries, then)
    with cache._held():
        weights.clear()
    uses(cache)[outer]()
    assert told
    assert not cache.dead
    assert not [place for place in cache._entries if place != ("new",)]
    assert len(cache._places) == len(cache._entries)
    if inner == "find":
        assert not any(told)


def test_what_is_put_while_entries_are_dropped_is_not_kept() -> None:
    """Its weight may have the id of one that has died."""
    weights, living = [torch.randn(4)], torch.randn(4)
    cache = filled(weights)
    made: list[prepared_cache.PreparedEntry] = []

    def then() -> None:
        made.append(cache.put(("one", 0), Maker(), living * 2, (living,), (0,)))

    cache._entries = Interrupted(cache._entries, then)
    with cache._held():
        weights.clear()
    assert cache.find(("one", 0), (0,)) is None
    torch.testing.assert_close(made[0].tensor, living * 2)
    assert {entry.versions for entry in made} == {None}, "a plan would remember it, and nobody make it forget"
    assert not cache._places


def test_a_finalizer_of_what_is_dropped_may_look_at_the_cache() -> None:
    weights = [torch.randn(4) for _ in range(3)]
    cache, told = prepared_cache.PreparedCache(), []
    for number, weight in enumerate(weights):
        made = weight * 2
        weakref.finalize(made.untyped_storage(), lambda: told.append(cache.nbytes()))
        cache.put((number,), Maker(), made, (weight,), (0,))
    del made, weight
    with cache._held():
        weights.clear()
    assert cache.nbytes() == 0
    assert len(told) == 3
    assert not cache.dead


def test_a_weight_that_was_prepared_of_another_dies_with_it() -> None:
    first = torch.randn(4)
    cache, second = prepared_cache.PreparedCache(), first * 2
    cache.put(("second",), Maker(), second, (first,), (0,))
    cache.put(("third",), Maker(), second * 2, (second,), (0,))
    del second
    assert cache.nbytes() == 32
    del first
    assert not cache._entries
    assert not cache.dead


@pytest.mark.parametrize("moment", range(1, 9))
def test_what_interrupts_the_dropping_does_not_leave_an_entry_of_the_dead(moment: int) -> None:
    """As KeyboardInterrupt does."""
    weights = [torch.randn(4) for _ in range(2)]
    cache, moments = filled(weights), iter(range(1, 9))

    def then() -> None:
        if next(moments) == moment:
            raise KeyboardInterrupt

    cache._entries = Interrupted(cache._entries, then)
    with cache._held():
        weights.clear()
    with pytest.raises(KeyboardInterrupt):
        cache.find(("one", 0), (0,))
    assert cache.dead
    assert cache.find(("one", 0), (0,)) is None
    assert not cache._entries
    assert not cache._places
    assert not cache.dead


def test_many_threads_change_and_read_weights(dispatcher: Dispatcher, doubled: Doubled) -> None:
    x, start = torch.randn(3, 8), threading.Barrier(4)
    shared = torch.randn(8)
    faults: list[BaseException] = []

    def work() -> None:
        own = torch.randn(8)
        start.wait()
        try:
            for number in range(60):
                torch.testing.assert_close(dispatcher.call("rms_norm", x, own), expected(x, own))
                torch.testing.assert_close(dispatcher.call("rms_norm", x, shared), expected(x, shared))
                if number % 3 == 0:
                    own.mul_(-1.5)
                if number % 7 == 0:
                    own = torch.randn(8)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_an_entry_is_found_only_when_its_weights_end_will_drop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, weight = prepared_cache.PreparedCache(), torch.ones(4)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(prepared_cache.weakref, "finalize", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.put(("one",), Maker(), weight * 2, (weight,), (0,))
    assert cache.find(("one",), (0,)) is None
    assert cache.nbytes() == 0
    cache.put(("one",), Maker(), weight * 2, (weight,), (0,))
    assert cache.find(("one",), (0,)) is not None
    del weight
    gc.collect()
    assert cache.nbytes() == 0


@pytest.fixture
def budget(dispatcher: Dispatcher, doubled: Doubled) -> Iterator[Callable[[int], None]]:
    """Sets how many weights of 32 bytes may be prepared; nothing is prepared at the begin."""
    gc.collect()
    dispatcher.forget()
    assert prepared_bytes() == 0
    yield lambda weights: dispatcher.configure(prepared_bytes=32 * weights)
    dispatcher.configure(prepared_bytes=None)


@pytest.mark.filterwarnings("ignore:prepared weights on cpu")
def test_above_the_budget_the_least_recently_used_go(
    dispatcher: Dispatcher, doubled: Doubled, budget: Callable[[int], None]
) -> None:
    budget(3)
    x, weights = torch.randn(3, 8), [torch.randn(8) for _ in range(5)]

    def call(*places: int) -> int:
        before = doubled.made
        for place in places:
            torch.testing.assert_close(dispatcher.call("rms_norm", x, weights[place]), expected(x, weights[place]))
        return doubled.made - before

    assert call(0, 1, 2, 0, 1) == 3
    assert prepared_bytes() == 96
    for newest, dropped in [(3, 2), (2, 3), (4, 2)]:
        assert call(newest) == 1
        assert prepared_bytes() == 96
        assert call(0, 1) == 0, f"{dropped} was not used for longer"
    budget(0)
    assert call(0, 0, 0) == 1, "the newest stays"
    assert prepared_bytes() == 32
    assert call(1, 0, 1) == 3
    assert prepared_bytes() == 32


def test_a_budget_that_does_not_do_is_one_warning(
    dispatcher: Dispatcher, doubled: Doubled, budget: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "_CACHE", prepared_cache.PreparedCache(prepared.BUDGET.of))
    budget(1)
    x, weights = torch.randn(3, 8), [torch.randn(8) for _ in range(4)]
    dispatcher.call("rms_norm", x, weights[0])
    with pytest.warns(DispatchWarning, match="more than their budget of 32 bytes") as seen:
        dispatcher.call("rms_norm", x, weights[1])
    assert len(seen) == 1
    for weight in weights:
        dispatcher.call("rms_norm", x, weight)


@pytest.mark.filterwarnings("ignore:prepared weights on cpu")
def test_what_a_graph_reads_stays_above_the_budget(
    dispatcher: Dispatcher, doubled: Doubled, budget: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    budget(1)
    x, captured, other = torch.randn(3, 8), torch.randn(8), torch.randn(8)
    dispatcher.call("rms_norm", x, captured)
    with monkeypatch.context() as patch:
        patch.setattr(prepared, "_capturing", lambda tensor: True)
        prepared._CACHE.empty_records()
        dispatcher.call("rms_norm", x, captured)
    read_by_a_graph = doubled.seen[0]
    dispatcher.call("rms_norm", x, other)
    made = doubled.made
    dispatcher.call("rms_norm", x, captured)
    assert doubled.made == made
    assert doubled.seen[0] is read_by_a_graph


def test_the_budget_is_said_by_configure_else_the_environment_else_the_device(
    dispatcher: Dispatcher, budget: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    assert prepared.BUDGET.of(cpu) == Device.of("cpu").memory_bytes // 4
    monkeypatch.setenv("KERNEL_REGISTRY_PREPARED_BYTES", "4096")
    assert prepared.BUDGET.of(cpu) == 4096
    budget(2)
    assert prepared.BUDGET.of(cpu) == 64
    for wrong in (-1, 1.5, "1", True):
        with pytest.raises(InvalidArgumentError, match="expected a number of bytes"):
            dispatcher.configure(prepared_bytes=wrong)  # type: ignore[arg-type]
    assert prepared.BUDGET.of(cpu) == 64
    dispatcher.configure(prepared_bytes=None)
    monkeypatch.setenv("KERNEL_REGISTRY_PREPARED_BYTES", "4 GiB")
    with pytest.raises(InvalidArgumentError, match="4 GiB"):
        prepared.BUDGET.of(cpu)
