"""Tensors derived once from arguments (a weight in a layout of its own), cached while their sources live unchanged."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any

import torch

from ..contract import Op
from ..errors import NotReadyError
from ..implementation import Implementation
from ..problem import Arguments, Problem, TensorSpec, canonical_json
from ..space import Config, config_key

_Key = tuple[str, str, str, str, str]
_Place = tuple[_Key, tuple[object, ...]]


class _Cache:
    """Prepared tensors by the memory they were made from; an entry dies with any of its sources' storages.

    A source is known by its storage, so that views made anew for each call find the same entry, and is unchanged
    while its version counter is, which views and ``detach()`` share.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[_Place, tuple[tuple[int, ...], torch.Tensor]] = {}
        self._places: dict[int, set[_Place]] = {}

    def find(self, place: _Place, versions: tuple[int, ...]) -> torch.Tensor | None:
        entry = self._entries.get(place)
        return entry[1] if entry is not None and entry[0] == versions else None

    def make(
        self, place: _Place, sources: tuple[torch.Tensor, ...], versions: tuple[int, ...], prepare: Any
    ) -> torch.Tensor:
        with self._lock:
            found = self.find(place, versions)
            if found is not None:
                return found
            made: torch.Tensor = prepare()
            storages = {id(source.untyped_storage()) for source in sources}
            if id(made.untyped_storage()) in storages:
                made = made.clone()  # a view of its source would keep the source alive, and itself with it
            if made.device.type == "cuda":
                # it was made on this stream and will be read from any
                torch.cuda.current_stream(made.device).synchronize()
            self._entries[place] = (versions, made)
            for source in sources:
                self._watch(source.untyped_storage(), place)
            return made

    def _watch(self, storage: torch.UntypedStorage, place: _Place) -> None:
        token = id(storage)
        if token not in self._places:
            self._places[token] = set()
            # torch keeps the storage's Python object alive as long as its memory, also when only views are left
            weakref.finalize(storage, self._forget, token).atexit = False
        self._places[token].add(place)

    def _forget(self, token: int) -> None:
        with self._lock:
            for place in self._places.pop(token, ()):
                self._entries.pop(place, None)

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(tensor.untyped_storage().nbytes() for _, tensor in list(self._entries.values()))


_CACHE = _Cache()


def prepared_bytes() -> int:
    """Bytes that prepared tensors hold at the moment, over all ops."""
    return _CACHE.nbytes


class PreparedTensors:
    """What one candidate needs prepared. Falsy when it needs nothing.

    Problems that differ in dynamic dimensions only share what is prepared: a weight is repacked once for all m.
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
        self._key = (op.name, implementation.name, config_key(config), static)

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
        return values + tuple(
            self._get(name, tuple(values[place] for place in self._places[name])) for name in self._wanted
        )

    def nbytes(self, values: tuple[Any, ...]) -> int:
        """Bytes that are held for these values now."""
        total = 0
        for name, places in self._places.items():
            sources = tuple(values[place] for place in places)
            if not any(isinstance(source, torch.Tensor) and source.is_inference() for source in sources):
                found = _CACHE.find(*self._identity(name, sources)[:2])
                total += 0 if found is None else found.untyped_storage().nbytes()
        return total

    def _identity(
        self, name: str, sources: tuple[Any, ...]
    ) -> tuple[_Place, tuple[int, ...], tuple[torch.Tensor, ...]]:
        tensors = tuple(source for source in sources if isinstance(source, torch.Tensor))
        known = tuple(_memory(source) if isinstance(source, torch.Tensor) else source for source in sources)
        return ((*self._key, name), known), tuple(source._version for source in tensors), tensors

    def _get(self, name: str, sources: tuple[Any, ...]) -> torch.Tensor:
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
        if found is not None:
            return found
        if tensors[0].device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise NotReadyError(
                f"{self._implementation.name}: {name} is not prepared yet, and a CUDA stream is capturing",
                hint="call it once on these weights before capturing",
            )

        def prepare() -> torch.Tensor:
            with torch.no_grad():
                return self._implementation.prepare(name, sources, self._problem, self._config)

        return _CACHE.make(place, tensors, versions, prepare)


def _memory(tensor: torch.Tensor) -> tuple[object, ...]:
    # the address tells of a storage that was emptied and filled again, as sharded training does
    return id(tensor.untyped_storage()), tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
