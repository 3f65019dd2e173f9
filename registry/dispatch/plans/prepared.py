"""Tensors derived once from arguments (a weight in a layout of its own), cached while their sources live unchanged."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import torch

from ...contract import Op
from ...errors import NotReadyError
from ...implementation import Implementation
from ...problem import Arguments, Problem, TensorSpec, canonical_json
from ...space import Config, config_key
from ..torch_side.torch_private import stream_capturing, unseen_by_modes
from .own_thread import made_apart
from .prepared_cache import Entry, Place, PreparedCache, Versions
from .prepared_hit import Hit, Sources, hit, unremembered

_CACHE = PreparedCache()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_CACHE.after_fork)


def prepared_bytes() -> int:
    """Bytes that prepared tensors hold at the moment, over all ops."""
    return _CACHE.nbytes


def forget_prepared() -> None:
    """Drop what was prepared, but for what a captured CUDA graph may read."""
    _CACHE.clear()


class PreparedTensors:
    """What one candidate needs prepared. Falsy when it needs nothing.

    Problems that differ in dynamic dimensions only share what is prepared: a weight is repacked once for all m.

    A change is seen by torch's version counter. What goes around it is not seen: ``weight.data.copy_(...)``, a write
    through NumPy or DLPack, a kernel that is handed the address. Write with ``weight.detach().copy_(...)`` or under
    ``torch.no_grad()``. A changed source is prepared anew, in the same memory, by the next call outside of a capture:
    a captured graph reads the new values from then on.
    """

    def __init__(self, op: Op, implementation: Implementation, problem: Problem, config: Config) -> None:
        self._implementation = implementation
        self._problem = problem
        self._config = config
        self._wanted: Mapping[str, tuple[str, ...]] = implementation.prepared(problem, config)
        self._places = {
            name: tuple(op.parsed.names.index(argument) for argument in arguments)
            for name, arguments in self._wanted.items()
        }
        static = canonical_json({name: value for name, value in problem.dims.items() if name not in op.dynamic})
        # two implementations may bear one name: of two catalogs, or of a module that was loaded again
        shared = config_key(implementation.prepared_config(problem, config))
        self._key = (op.name, id(implementation), shared, static)

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def specs(self, arguments: Arguments) -> dict[str, TensorSpec]:
        """Specs of the prepared tensors, found by preparing meta tensors."""
        meta = torch.device("meta")
        specs = {}
        for name, sources in self._wanted.items():
            values = [arguments[source] for source in sources]
            metas = tuple(value.empty(meta) if isinstance(value, TensorSpec) else value for value in values)
            made = self._implementation.prepare(name, metas, self._problem, self._config)
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

    def hit(self, arguments: Arguments, varying: Collection[str] = ()) -> Hit:
        """``extend`` for a plan, whose tensors have the specs of ``arguments``, but for the ``varying`` ones."""
        given = list(arguments.values.items())
        if any(given[place][0] in varying for places in self._places.values() for place in places):
            return unremembered(len(self._places), len(given), self.extend)
        are = {place for place, (_, value) in enumerate(given) if isinstance(value, TensorSpec)}
        used = {place for places in self._places.values() for place in places}
        tensors = tuple(tuple(place for place in places if place in are) for places in self._places.values())
        sources = Sources(tensors, tuple(sorted(used - are)))
        return hit(_CACHE, sources, len(given), next(iter(arguments.tensors.values())).device, self._entries)

    def nbytes(self, values: tuple[Any, ...]) -> int:
        """Bytes that are held for these values now."""
        total = 0
        for name, places in self._places.items():
            sources = tuple(values[place] for place in places)
            if not any(isinstance(source, torch.Tensor) and source.is_inference() for source in sources):
                found = _CACHE.find(*self._identity(name, sources)[:2])
                total += 0 if found is None else found.nbytes
        return total

    def _identity(self, name: str, sources: tuple[Any, ...]) -> tuple[Place, Versions, tuple[torch.Tensor, ...]]:
        tensors = tuple(source for source in sources if isinstance(source, torch.Tensor))
        known = tuple(_memory(source) if isinstance(source, torch.Tensor) else source for source in sources)
        return (*self._key, name, known), tuple(source._version for source in tensors), tensors

    def _entries(self, values: tuple[Any, ...]) -> list[Entry]:
        return [self._entry(name, tuple(values[place] for place in places)) for name, places in self._places.items()]

    def _entry(self, name: str, sources: tuple[Any, ...]) -> Entry:
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
        found, capturing = _CACHE.find(place, versions), _capturing(tensors[0])
        if found is None:
            found = self._make(name, place, sources, tensors, versions)
        elif capturing and not found.captured:
            _CACHE.pin(place, found, tensors)
        if not capturing:
            found.read_here()
        return found

    def _make(
        self,
        name: str,
        place: Place,
        sources: tuple[Any, ...],
        tensors: tuple[torch.Tensor, ...],
        versions: Versions,
    ) -> Entry:
        if _capturing(tensors[0]):
            raise NotReadyError(
                f"{self._implementation.name}: {name} is not prepared yet, and a CUDA stream is capturing",
                hint="call it once on these weights before capturing",
            )
        # a tensor of inference mode could neither be refilled nor used outside of it
        with unseen_by_modes():
            made = made_apart(
                lambda: self._implementation.prepare(name, sources, self._problem, self._config), tensors[0].device
            )
        with torch.inference_mode(False), torch.no_grad(), unseen_by_modes():
            return _CACHE.put(place, self._implementation, made, tensors, versions)


def _capturing(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and stream_capturing()


def _memory(tensor: torch.Tensor) -> tuple[object, ...]:
    # the address tells of a storage that was emptied and filled again, as sharded training does
    return id(tensor.untyped_storage()), tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
