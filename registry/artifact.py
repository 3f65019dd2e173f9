"""Variants, artifacts and signatures: the plain, frozen data that processes exchange to compile a launch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from .fingerprint import normalised_c
from .problem import Argument, Arguments, TensorSpec, canonical_json, fits_int32


@dataclass(frozen=True)
class Target:
    """The architecture to compile for: ``Target("cuda", "sm_90", 32)``, ``Target("hip", "gfx942", 64)``."""

    backend: str
    architecture: str
    warp_size: int = 32


@dataclass(frozen=True)
class Variant:
    """A kernel with its constants, options and argument types, ready to compile, as plain JSON.

    ``backend`` names the backend that compiles it; ``spec`` is all that the compiler needs besides the source.
    """

    backend: str
    kernel: str
    spec: Mapping[str, Any]
    source: str = ""

    @cached_property
    def key(self) -> str:
        """SHA-256 of all fields: candidates with equal keys share one artifact."""
        head = canonical_json([self.backend, self.kernel, dict(self.spec)]).removesuffix("]")
        return hashlib.sha256(f"{head},{_quoted(self.source)}]".encode()).hexdigest()


@lru_cache(maxsize=256)
def _quoted(source: str) -> str:
    """A kernel's text as JSON, which takes most of a key's time; the variants of a kernel have one text."""
    return canonical_json(source)


def code_of(variants: Iterable[Variant]) -> str:
    """Hash of the variants' code: equal hashes mean identical code; "" if there are no variants."""
    keys = [variant.key for variant in variants]
    return hashlib.sha256("\n".join(keys).encode()).hexdigest() if keys else ""


def texts_of(variants: Iterable[Variant]) -> str:
    """Hash of the variants' kernels by backend, name and text; "" if there are no variants.

    It does not change with constants, options and types, nor with comments and blanks.
    """
    texts = sorted({(variant.backend, variant.kernel, normalised_c(variant.source)) for variant in variants})
    return hashlib.sha256(canonical_json(texts).encode()).hexdigest() if texts else ""


@dataclass(frozen=True)
class Artifact:
    """A compiled variant, loadable in another process.

    ``path`` is the file in the user's cache ("" when the backend finds it by the variant alone); ``resources`` are the
    compiler's: ``registers``, ``shared_bytes``, ``spill_bytes``, ``threads``.
    """

    variant: Variant
    path: str = ""
    resources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, init=False)
class Signature:
    """Specs of everything that a launch may name: arguments in the schema's order, outputs, scratch, prepared."""

    arguments: Arguments
    outputs: Mapping[str, TensorSpec]
    scratch: Mapping[str, TensorSpec]
    prepared: Mapping[str, TensorSpec]

    def __init__(
        self,
        arguments: Arguments,
        outputs: Mapping[str, TensorSpec],
        scratch: Mapping[str, TensorSpec] | None = None,
        prepared: Mapping[str, TensorSpec] | None = None,
    ) -> None:
        own = self.__dict__  # a frozen dataclass takes 6 times as long to set its fields
        own["arguments"] = arguments
        own["outputs"] = outputs
        own["scratch"] = scratch or {}
        own["prepared"] = prepared or {}

    @cached_property
    def operands(self) -> Mapping[str, RunItem]:
        """The RunItem of each name of the signature. For backends: an attribute's value does not count as read."""
        arguments = {**self.arguments.unrecorded, **self.prepared}
        groups = {"scratch": self.scratch, "arguments": arguments, "outputs": self.outputs}
        return {
            name: RunItem(group, place, value)
            for group, values in groups.items()
            for place, (name, value) in enumerate(values.items())
        }

    @cached_property
    def form(self) -> Hashable:
        """Key of everything that compiled code may depend on: names, dtypes, alignment, attribute types; no size."""
        found: list[Hashable] = []
        for group in (self.scratch, self.arguments.unrecorded, self.prepared, self.outputs):
            found.append(len(group))
            for name, value in group.items():
                if type(value) is TensorSpec:
                    found += name, value.dtype, value.alignment, 0 in value.shape
                else:
                    found += name, _form(value)
        return tuple(found)

    def misaligned(self) -> Signature:
        """This signature with every tensor's alignment unknown."""
        made = (self.outputs, self.scratch, self.prepared)
        groups = [{name: spec.misaligned() for name, spec in group.items()} for group in made]
        return Signature(self.arguments.mapped(TensorSpec.misaligned), *groups)


class LateSignature(Signature):
    """A signature whose specs of outputs are made when they are read: few runs for another size need them.

    They are the result of ``make_outputs(arguments, sizes)``.
    """

    outputs = cached_property(lambda self: self.make_outputs(self.arguments, self.sizes))

    def __init__(
        self,
        arguments: Arguments,
        make_outputs: Callable[[Arguments, Any], Mapping[str, TensorSpec]],
        sizes: Any,
        scratch: Mapping[str, TensorSpec],
        prepared: Mapping[str, TensorSpec],
    ) -> None:
        own = self.__dict__  # as in Signature: each new size of a call makes one
        own["arguments"] = arguments
        own["make_outputs"] = make_outputs
        own["sizes"] = sizes
        own["scratch"] = scratch
        own["prepared"] = prepared


class RunItem(NamedTuple):
    """Item ``place`` of a run's ``group`` (``outputs``, ``arguments`` or ``scratch``), and its spec or value."""

    group: str
    place: int
    value: Argument


def _form(value: Argument) -> tuple[Hashable, ...]:
    if isinstance(value, TensorSpec):
        return value.dtype, value.alignment, 0 in value.shape
    if isinstance(value, tuple):
        return tuple(map(_form, value))
    return type(value).__name__, type(value) is int and fits_int32(value)


@dataclass(frozen=True)
class Built:
    """Input of ``Implementation.bind``: the signature and an artifact per variant, in the order of ``variants``."""

    signature: Signature
    artifacts: tuple[Artifact, ...] = ()
