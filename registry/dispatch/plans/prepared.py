"""Prepared tensors, e.g. a weight in another layout: derived once from arguments, cached while these live unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch

from ...arguments.lists import Lengths, grouped, one_by_one
from ...author_code import at_method
from ...contract import Op
from ...errors import ArgumentTypeError, InvalidDefinitionError, NotReadyError, UnknownNameError, WrongAnswerError
from ...implementation import Implementation
from ...problem import Arguments, Problem, TensorSpec, canonical_json
from ...space import Config, config_key
from ..torch_side.torch_private import stream_capturing, unseen_by_modes
from .own_thread import made_apart
from .prepared_budget import PreparedBudget
from .prepared_cache import PreparedCache, PreparedEntry, StoragePlace, Versions
from .prepared_hit import Hit, Sources, hit, unremembered

BUDGET = PreparedBudget()

_CACHE = PreparedCache(BUDGET.of)


def prepared_bytes() -> int:
    """Bytes that the prepared tensors of all ops hold now, on all devices."""
    return _CACHE.nbytes()


def forget_prepared() -> None:
    """Drop all prepared tensors except those that a captured CUDA graph may read."""
    _CACHE.clear()


@runtime_checkable
class HoldsTensors(Protocol):
    """A weight of several tensors, such as a PackedWeight or a Sparse24Weight."""

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors that the weight consists of, in a fixed order."""


def weights_changed(*weights: torch.Tensor | HoldsTensors) -> int:
    """Make the prepared forms of these weights again, in their memory; returns their number.

    For changes that torch's version counter does not count: a broadcast or another collective into a weight, a write
    through ``.data``, NumPy or DLPack, a copy into its storage, and operations under FSDP's unsafe preservation of
    version counters. A CUDA graph that was captured with a prepared form reads the new one from its next replay on.
    A tensor is found by its storage, so any view of a weight will do; a tensor without prepared forms counts 0. Call it
    on the stream that the weights were written on. Raises NotReadyError during a capture, and ArgumentTypeError for
    anything but a tensor or a weight of several tensors.
    """
    tensors = [tensor for weight in weights for tensor in _tensors_of(weight)]
    if any(map(_capturing, tensors)):
        raise NotReadyError("weights_changed: a CUDA stream is capturing", hint="call it before or after the capture")
    with torch.inference_mode(False), torch.no_grad(), unseen_by_modes():
        return sum(_CACHE.remake(entry) for entry in _CACHE.made_of(tensors))


def _tensors_of(weight: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(weight, HoldsTensors):
        return weight.tensors
    if not isinstance(weight, torch.Tensor):
        raise ArgumentTypeError(
            f"weights_changed: got {weight!r:.80}", hint="expected tensors, e.g. weights_changed(*module.parameters())"
        )
    return (weight,)


def bytes_to_prepare(op: Op, candidate: tuple[Implementation, Config], problem: Problem, arguments: Arguments) -> int:
    """Bytes that a candidate prepares for one set of weights of a problem; found by preparing meta tensors."""
    prepared = PreparedTensors(op, candidate[0], problem, candidate[1])
    return sum(spec.nbytes for spec in prepared.specs(arguments).values())


class PreparedTensors:
    """The prepared tensors of one candidate; False as a bool if it needs none.

    Problems that differ in dynamic dimensions only share them: a weight is repacked once for all m. The next call
    outside of a capture prepares a changed source again, in the memory of the former tensor: a captured graph reads the
    new values from then on. Changes are seen by torch's version counter, others by ``weights_changed``.

    Raises InvalidDefinitionError for a source that is a tensor and not among the op's ``weights``.
    """

    def __init__(self, op: Op, implementation: Implementation, problem: Problem, config: Config) -> None:
        self._implementation = implementation
        self._problem = problem
        self._config = config
        self._wanted: Mapping[str, tuple[str, ...]] = implementation.prepared(problem, config)
        self._places: dict[str, tuple[int, ...]] = {}
        if self._wanted == {}:
            return
        _check_sources(op, implementation, self._wanted)
        self._places = {
            name: tuple(op.parsed.names.index(argument) for argument in arguments)
            for name, arguments in self._wanted.items()
        }
        static = canonical_json({name: value for name, value in problem.dims.items() if name not in op.dynamic})
        # by id: two implementations may have one name, in two catalogs or from a module that was loaded again
        shared = config_key(implementation.prepared_config(problem, config))
        self._key = (op.name, id(implementation.prepared_by), shared, static)

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def serve(self, problem: Problem, arguments: Arguments, own: Arguments) -> bool:
        """True if these prepared tensors also serve ``problem``, of another size.

        ``own`` are the arguments that the tensors were made for.
        """
        wanted = self._wanted
        if self._implementation.prepared(problem, self._config) != wanted:
            return False
        for sources in wanted.values():
            for source in sources:
                # by identity first, since a weight's spec is mostly the former object; an attribute counts as read
                known = own.unrecorded[source]
                if arguments.unrecorded[source] is not known and arguments[source] != known:
                    return False
                if not isinstance(known, TensorSpec) and arguments.seen is not None:
                    arguments.seen.add(source)
        return True

    def specs(self, arguments: Arguments) -> dict[str, TensorSpec]:
        """Specs of the prepared tensors, found by preparing meta tensors."""
        meta = torch.device("meta")
        specs = {}
        for name, sources in self._wanted.items():
            given, lengths = one_by_one(tuple(arguments[source] for source in sources))
            metas = tuple(value.empty(meta) if isinstance(value, TensorSpec) else value for value in given)
            made: object = self._implementation.prepare(name, grouped(metas, lengths), self._problem, self._config)
            if not isinstance(made, torch.Tensor):
                place = at_method(self._implementation, "prepare")
                told = f"{self._implementation.name}: prepare({name!r}) returned {made!r:.80}, expected a tensor{place}"
                raise WrongAnswerError(told)
            device = next(iter(arguments.tensors.values())).device
            specs[name] = TensorSpec(tuple(made.shape), made.dtype, tuple(made.stride()), device)
        return specs

    def extend(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """``values`` followed by the prepared tensors, made now if their sources are new or have changed.

        Raises NotReadyError, before anything runs, when they would have to be made while a CUDA stream is capturing,
        or from inference tensors, whose changes torch does not count.
        """
        if not self._wanted:
            return values
        return values + tuple(entry.tensor for entry in self._entries(values))

    def unready(self, values: tuple[Any, ...]) -> str:
        """Why ``extend`` would raise NotReadyError for these values now; "" if it would not."""
        try:
            for name, places in self._places.items():
                self._looked_up(name, one_by_one(tuple(values[place] for place in places))[0])
        except NotReadyError as fault:
            return fault.message
        return ""

    def hit(self, arguments: Arguments) -> Hit:
        """The text of ``extend`` for a plan whose tensors have the specs of ``arguments``."""
        given = list(arguments.unrecorded.values())
        if any(isinstance(given[place], tuple) for places in self._places.values() for place in places):
            return unremembered(len(self._places), len(given), self.extend)
        are = {place for place, value in enumerate(given) if isinstance(value, TensorSpec)}
        used = {place for places in self._places.values() for place in places}
        tensors = tuple(tuple(place for place in places if place in are) for places in self._places.values())
        sources = Sources(tensors, tuple(sorted(used - are)))
        return hit(_CACHE, sources, len(given), next(iter(arguments.tensors.values())).device, self._entries)

    def nbytes(self, values: tuple[Any, ...]) -> int:
        """Bytes that the prepared tensors of these values hold now."""
        total = 0
        for name, places in self._places.items():
            sources, _ = one_by_one(tuple(values[place] for place in places))
            if not any(isinstance(source, torch.Tensor) and source.is_inference() for source in sources):
                found = _CACHE.find(*self._identity(name, sources)[:2])
                total += 0 if found is None else found.nbytes
        return total

    def _identity(self, name: str, sources: tuple[Any, ...]) -> tuple[StoragePlace, Versions, tuple[torch.Tensor, ...]]:
        tensors = tuple(source for source in sources if isinstance(source, torch.Tensor))
        known = tuple(_memory(source) if isinstance(source, torch.Tensor) else source for source in sources)
        return (*self._key, name, known), tuple(source._version for source in tensors), tensors

    def _entries(self, values: tuple[Any, ...]) -> list[PreparedEntry]:
        wanted = {name: tuple(values[place] for place in places) for name, places in self._places.items()}
        return [self._entry(name, *one_by_one(sources)) for name, sources in wanted.items()]

    def _entry(self, name: str, sources: tuple[Any, ...], lengths: Lengths) -> PreparedEntry:
        place, versions, tensors, found = self._looked_up(name, sources)
        capturing = _capturing(tensors[0])
        if found is None:
            found = self._make(name, place, sources, lengths, tensors[0], versions)
        elif capturing and not found.captured:
            _CACHE.pin(place, found, tensors)
        if not capturing:
            found.read_here()
        return found

    def _looked_up(
        self, name: str, sources: tuple[Any, ...]
    ) -> tuple[StoragePlace, Versions, tuple[torch.Tensor, ...], PreparedEntry | None]:
        """The key of the sources, and their entry, if any. Raises NotReadyError if one is needed but cannot be made."""
        try:
            place, versions, tensors = self._identity(name, sources)
        except RuntimeError:
            if not any(isinstance(source, torch.Tensor) and source.is_inference() for source in sources):
                raise
            raise NotReadyError(
                f"{self._implementation.name}: {name} would be prepared from a tensor made in inference mode, whose "
                "changes torch does not count",
                hint="make the weights outside of torch.inference_mode(), or under torch.no_grad()",
            ) from None
        found = _CACHE.find(place, versions)
        if found is None and _capturing(tensors[0]):
            raise NotReadyError(
                f"{self._implementation.name}: {name} is not prepared yet, and a CUDA stream is capturing",
                hint="call it once on these weights before capturing",
            )
        return place, versions, tensors, found

    def _make(
        self,
        name: str,
        place: StoragePlace,
        sources: tuple[Any, ...],
        lengths: Lengths,
        first: torch.Tensor,
        versions: Versions,
    ) -> PreparedEntry:
        implementation, problem, config = self._implementation, self._problem, self._config

        def make(given: tuple[Any, ...]) -> torch.Tensor:
            return implementation.prepare(name, grouped(given, lengths), problem, config)

        # a tensor of inference mode could neither be refilled nor used outside of it
        with unseen_by_modes():
            made = made_apart(lambda: make(sources), first.device)
        with torch.inference_mode(False), torch.no_grad(), unseen_by_modes():
            return _CACHE.put(place, make, made, sources, versions)


def _check_sources(op: Op, implementation: Implementation, wanted: Mapping[str, tuple[str, ...]]) -> None:
    """Raise InvalidDefinitionError unless every source is an attribute or one of the op's ``weights``."""
    kinds = {parameter.name: parameter.kind for parameter in op.parsed.parameters}
    if not isinstance(wanted, Mapping) or any(isinstance(sources, str) for sources in wanted.values()):
        place = at_method(implementation, "prepared")
        expected = f'a mapping of names to tuples of arguments, e.g. {{"packed": ("weight",)}}{place}'
        raise WrongAnswerError(f"{implementation.name}: prepared() returned {wanted!r:.80}, expected {expected}")
    for name, sources in wanted.items():
        told = f"{op.name}: {implementation.name} prepares {name!r} from"
        for source in sources:
            if source not in kinds:
                raise InvalidDefinitionError(f"{told} {source!r}: {UnknownNameError('argument', source, kinds)}")
            if kinds[source] in {"Tensor", "Tensor[]"} and source not in op.weights:
                weights = ", ".join(sorted(op.weights)) or "none"
                raise InvalidDefinitionError(
                    f"{told} {source!r}, which is no weight of the op (its weights: {weights})",
                    hint=f"compute it at each call, in scratch; or add {source!r} to Op.weights if calls hand over one"
                    " tensor again and again",
                )


def _capturing(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and stream_capturing()


def _memory(tensor: torch.Tensor) -> tuple[object, ...]:
    # the address tells of a storage that was emptied and filled again, as sharded training does
    return id(tensor.untyped_storage()), tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
