"""Traits of a call's arguments, by which an implementation decides whether it can run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import UnknownNameError
from .specs import FULL_ALIGNMENT, Argument, Arguments, MatrixLayout, TensorSpec, Value, dtype_name, specs_in


class Traits:
    """Properties of a call's arguments besides dimensions, by which an implementation decides whether it can run.

    They are not part of a problem's identity and are not stored. Each is computed when it is read. ``source`` is the
    call's arguments or a function that returns them; None where only dimensions are known: every tensor then counts as
    present, row-major and aligned, except for the aggregates that ``told`` overrides, e.g. ``{"aligned": False}``.
    ``told`` also has what the op finds, see ``Op.told``.
    """

    __slots__ = ("_source", "_told")

    def __init__(
        self, source: Arguments | Callable[[], Arguments | None] | None = None, told: Mapping[str, Any] | None = None
    ) -> None:
        self._source = source
        self._told: dict[str, Any] = dict(told or {})

    @property
    def arguments(self) -> Arguments | None:
        """Specs of the arguments as the problem sees them (``Op.view``); None where only dimensions are known."""
        return self._given

    @property
    def _given(self) -> Arguments | None:
        if callable(self._source):
            self._source = self._source()
        return self._source

    def contiguous(self, name: str) -> bool:
        """Whether a tensor, or every one of a list, is row-major without gaps; True for one that is left out."""
        return self._each(name, "contiguous")

    def aligned(self, name: str) -> bool:
        """Whether a tensor, or every one of a list, starts at a multiple of 16 bytes; True for one that is left out."""
        return self._each(name, "aligned")

    def layout(self, name: str) -> MatrixLayout:
        """The class of a tensor's strides; of a list's tensors where all are of one class, otherwise "other"."""
        if (specs := self._of(name)) is None:
            return "row-major" if self._told.get("contiguous", True) else "other"
        found = {spec.layout for spec in specs} or {"row-major"}
        return found.pop() if len(found) == 1 else "other"

    def present(self, name: str) -> bool:
        """Whether an optional argument is given."""
        arguments = self._given
        return arguments is None or self._checked(arguments, name) is not None

    def dtype(self, name: str) -> str | None:
        """The name of a tensor's dtype, e.g. "bfloat16"; None for one that is left out or of which nothing is known."""
        specs = self._of(name)
        return dtype_name(specs[0].dtype) if specs else None

    @property
    def lists(self) -> bool:
        """Whether an argument is a list of tensors or numbers; False where only dimensions are known."""
        arguments = self._given
        return arguments is not None and any(type(value) is tuple for value in arguments.unrecorded.values())

    @property
    def added(self) -> Mapping[str, tuple[Value, ...]]:
        """Values of dimensions that only implementations run that name them: ``Op.added``."""
        found: Mapping[str, tuple[Value, ...]] = self._told.get("added", _NOTHING_TOLD)
        return found

    @property
    def gradient(self) -> bool:
        """Whether autograd records the call; False where that is not known."""
        return self.arguments is not None and self.arguments.gradient

    def __getitem__(self, trait: str) -> bool:
        """``traits["contiguous"]`` or ``traits["aligned"]``: whether that holds for every tensor argument.

        ``traits["mixed"]``: whether dtypes differ that are one dtype in the op's own inputs (``Op.alike``).
        """
        if trait == "mixed":
            return bool(self._told.get(trait, False))
        if trait not in _AGGREGATES:
            raise UnknownNameError("trait", trait, _AGGREGATES)
        if trait in self._told or self.arguments is None:
            return bool(self._told.get(trait, True))
        specs = [spec for value in self.arguments.unrecorded.values() for spec in specs_in(value)]
        self._told[trait] = holds = all(map(_AGGREGATES[trait], specs))
        return holds

    def misaligned(self) -> Traits:
        """These traits for a call none of whose tensors starts at a multiple of 16 bytes."""

        def made() -> Arguments | None:
            return None if self.arguments is None else self.arguments.mapped(TensorSpec.misaligned)

        return Traits(made, {**self._told, "aligned": False})

    def __reduce__(self) -> tuple[object, ...]:
        return Traits, (self.arguments, self._told)

    def __repr__(self) -> str:
        return f"Traits(contiguous={self['contiguous']}, aligned={self['aligned']})"

    def _each(self, name: str, trait: str) -> bool:
        specs = self._of(name)
        return bool(self._told.get(trait, True)) if specs is None else all(map(_AGGREGATES[trait], specs))

    def _of(self, name: str) -> tuple[TensorSpec, ...] | None:
        arguments = self._given
        return None if arguments is None else specs_in(self._checked(arguments, name))

    def _checked(self, arguments: Arguments, name: str) -> Argument:
        if name not in arguments.values:
            raise UnknownNameError(f"argument of {arguments.op}", name, arguments.values)
        return arguments.values[name]


class FamilyTraits(Traits):
    """Traits of a call that is like an earlier one in the layout and alignment of each tensor and in the gradient.

    Reads of these are not counted, since they are the same for every call of the family. ``taken`` counts the reads of
    ``arguments``, through which anything may be read; ``looked`` counts these and the reads of alignment. The traits of
    ``misaligned()``, given as ``aligned``, count their reads here.
    """

    __slots__ = ("_aligned", "looked", "taken")

    def __init__(
        self, source: Arguments, told: Mapping[str, Any] | None = None, aligned: FamilyTraits | None = None
    ) -> None:
        # without the base's __init__, for speed: a new size of a call makes these
        self._source = source
        self._told = dict(told) if told else _NOTHING_TOLD
        self.taken = self.looked = 0
        self._aligned = aligned

    @property
    def arguments(self) -> Arguments | None:
        """Specs of the arguments as the problem sees them."""
        if self._aligned is not None:
            self._aligned.taken += 1
            return self._misaligned()
        self.taken += 1
        self.looked += 1
        return self._given

    @property
    def gradient(self) -> bool:
        """Whether autograd records the call."""
        return self._known.gradient

    def misaligned(self) -> Traits:
        """These traits for a call none of whose tensors starts at a multiple of 16 bytes."""
        return type(self)(self._known, self._told, self)

    def __getitem__(self, trait: str) -> bool:
        if trait != "aligned":
            return super().__getitem__(trait) if trait not in _AGGREGATES else self._all(trait)
        self.looked += 1
        return self._aligned is None and self._all(trait)

    @property
    def _known(self) -> Arguments:
        assert isinstance(self._source, Arguments)
        return self._source

    def _misaligned(self) -> Arguments:
        return self._known.mapped(TensorSpec.misaligned)

    def _all(self, trait: str) -> bool:
        holds = _AGGREGATES[trait]
        return all(holds(spec) for value in self._known.unrecorded.values() for spec in specs_in(value))

    def _each(self, name: str, trait: str) -> bool:
        specs = self._of(name)
        if trait == "aligned":
            self.looked += 1
            if self._aligned is not None:
                return not specs
        return specs is None or all(map(_AGGREGATES[trait], specs))


class OrdinaryTraits(FamilyTraits):
    """Traits of a family whose tensors are all row-major and aligned: they answer without reading sizes."""

    __slots__ = ()

    def layout(self, name: str) -> MatrixLayout:
        """The layout of a tensor, which is ``"row-major"`` for every tensor of such a family."""
        self._of(name)
        return "row-major"

    def _all(self, trait: str) -> bool:
        return True

    def _each(self, name: str, trait: str) -> bool:
        there = bool(self._of(name))
        return not there or self[trait]


_NOTHING_TOLD: dict[str, Any] = {}

_AGGREGATES: Mapping[str, Callable[[TensorSpec], bool]] = {
    "contiguous": lambda spec: spec.is_contiguous,
    "aligned": lambda spec: spec.alignment >= FULL_ALIGNMENT,
}
