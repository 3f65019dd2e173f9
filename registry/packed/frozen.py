"""FrozenWeight and FrozenLayer: packed weights and their layers, of which resizing and tying are told."""

from __future__ import annotations

from typing import NoReturn

import torch

from ..errors import InvalidArgumentError


class FrozenWeight:
    """A weight that has no gradient, and that no model can resize."""

    __slots__ = ()

    @property
    def requires_grad(self) -> bool:
        """False: a packed weight is not learnt."""
        return False

    def size(self, dim: int | None = None) -> NoReturn:
        """Raise InvalidArgumentError: transformers calls this to resize an output layer, to whatever size."""
        raise InvalidArgumentError(
            f"{type(self).__name__}: it has no size(), as its layer cannot be resized",
            hint="to resize a model's token embeddings load it in full precision, resize it, and quantise it then, or"
            " without its output layer; the input embedding of this one may have the new size already",
        )


class FrozenLayer(torch.nn.Module):
    """A module with a property ``weight`` that is made of its buffers."""

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """Add a parameter, as ``layer.weight = parameter`` does, too. Raises InvalidArgumentError for a weight."""
        if name == "weight":
            raise InvalidArgumentError(
                f"{type(self).__name__}: its weight is packed, so that it cannot be tied to a parameter, or set to one",
                hint="load the model in full precision, tie its weights, and quantise it then: tied layers stay dense",
            )
        super().register_parameter(name, param)
