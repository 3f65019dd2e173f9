"""LayerFormat: the interface of a format of quantised checkpoints; and checks of a quantization_config's values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Set
from typing import Any, ClassVar

import torch

from .....errors import InvalidArgumentError
from .....packed import PackedWeight

_OWN_NAMES = frozenset({"qweight", "weight_packed", "weight_scale", "levels"})


class LayerFormat(ABC):
    """Names, presence and meaning of the tensors of a packed linear layer in a checkpoint."""

    method: ClassVar[str]
    """``quant_method`` in the checkpoint's config.json."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The last parts of the names of a packed layer's tensors. "weight" may also be an unpacked layer's."""

    @abstractmethod
    def required(self, layer: str) -> tuple[str, ...]:
        """The names of ``names`` that the packed layer ``layer`` cannot do without."""

    @abstractmethod
    def weight(self, layer: str, tensors: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> PackedWeight:
        """The weight of ``layer`` from its tensors by ``names``, for a linear layer of that shape ``(N, K)``.

        Raises InvalidArgumentError for tensors that do not make such a weight.
        """

    def scaled(self, layer: str, tensors: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """ScaledLinear's levels and scales, if ``layer`` has activations in 8 bits; None if ``weight`` makes it."""
        return None

    def activations(self, layer: str) -> str | None:
        """The dtype that PackedA8Linear rounds the activations of ``layer`` to; None: they are not rounded."""
        return None

    def is_packed(self, names: Set[str]) -> bool:
        """True for a layer that has tensors of these names: any of a packed weight's own, or several of the others.

        Other modules, too, may have parameters named "scales" or "order".
        """
        return bool(names & _OWN_NAMES) or len(names - {"weight"}) > 1

    @property
    def has_layers(self) -> bool:
        """True if a checkpoint without any packed layer cannot be one of this format."""
        return True

    @property
    def notes(self) -> tuple[str, ...]:
        """The checkpoint's settings that are left out, as sentences for a warning."""
        return ()

    @property
    def skipped(self) -> tuple[str, ...]:
        """Regular expressions of the names of layers that the checkpoint's config says are not packed."""
        return ()

    @property
    def bits(self) -> int:
        """Bits of most weights of the checkpoint."""
        return 4


def setting(method: str, settings: Mapping[str, Any], kind: type, *names: str, default: Any = None) -> Any:
    """The value of the first of ``names`` that is given; InvalidArgumentError if it is of another type or missing."""
    given = next((name for name in names if settings.get(name) is not None), None)
    if given is None:
        if default is None:
            raise InvalidArgumentError(
                f"{method}: the checkpoint's quantization_config lacks {' and '.join(map(repr, names))}",
                hint="complete quantization_config in its config.json (older files had quantize_config.json)",
            )
        return default
    value = settings[given]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidArgumentError(
            f"{method}: {given}={value!r} in the checkpoint's quantization_config", hint=f"expected {kind.__name__}"
        )
    return value


def choice(method: str, name: str, value: Any, supported: tuple[Any, ...], hint: str = "") -> None:
    """Raise InvalidArgumentError unless ``value`` is one of the supported."""
    if value not in supported:
        expected = f"supported: {', '.join(map(repr, supported))}"
        raise InvalidArgumentError(
            f"{method}: {name}={value!r} in the checkpoint's quantization_config",
            hint=f"{expected}; {hint}" if hint else expected,
        )


def names_list(method: str, settings: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A list of texts, which may be missing or None."""
    value = settings.get(name) or ()
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise InvalidArgumentError(f"{method}: {name}={value!r}", hint="expected a list of names of modules")
    return tuple(value)
