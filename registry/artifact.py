"""What crosses between processes when a launch is compiled: plain, frozen data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .errors import InvalidDefinitionError
from .problem import Arguments, TensorSpec, Value, canonical_json


@dataclass(frozen=True)
class Target:
    """What a variant is compiled for: ``Target("cuda", "sm_90", 32)``, ``Target("hip", "gfx942", 64)``."""

    backend: str
    architecture: str
    warp_size: int = 32


@dataclass(frozen=True)
class Variant:
    """What is compiled: a kernel with its constants, options and argument types, as plain JSON.

    ``backend`` names who compiles it; ``spec`` is all that the compiler needs beside the implementation's source.
    """

    backend: str
    kernel: str
    spec: Mapping[str, Any]
    source: str = ""

    @cached_property
    def key(self) -> str:
        """SHA-256 of everything above: candidates with equal keys share one artifact."""
        text = canonical_json([self.backend, self.kernel, dict(self.spec), self.source])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Artifact:
    """A compiled variant, loadable in another process.

    ``path`` is the file in the user's cache ("" when the backend finds it by the variant alone); ``resources`` are the
    compiler's: ``registers``, ``shared_bytes``, ``spill_bytes``, ``threads``.
    """

    variant: Variant
    path: str = ""
    resources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Signature:
    """Specs of everything that a launch may name: arguments in the schema's order, outputs, scratch, prepared."""

    arguments: Arguments
    outputs: Mapping[str, TensorSpec]
    scratch: Mapping[str, TensorSpec] = field(default_factory=dict)
    prepared: Mapping[str, TensorSpec] = field(default_factory=dict)

    def __getitem__(self, name: str) -> TensorSpec | Value | None:
        for group in (self.outputs, self.arguments.values, self.scratch, self.prepared):
            if name in group:
                value = group[name]
                if isinstance(value, tuple):
                    raise InvalidDefinitionError(
                        f"{self.arguments.op}: {name} is a list, which no kernel takes",
                        hint="run functional code that takes the list: returns_outputs = True",
                    )
                return value
        raise KeyError(name)


@dataclass(frozen=True)
class Built:
    """What ``Implementation.bind`` gets: the signature and one artifact a variant, in the order of ``variants``."""

    signature: Signature
    artifacts: tuple[Artifact, ...] = ()
