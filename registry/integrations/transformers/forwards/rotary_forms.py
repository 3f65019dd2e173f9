"""The forms of rotation that functions of transformers' files have, by the names that these functions share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

Angles = tuple[torch.Tensor, ...]
"""What a rotary module returns: cosines and sines [1 or batch, seq, head_dim], or complex numbers with half of that."""


class RotaryForm(NamedTuple):
    """How a function rotates heads of queries and keys [batch, heads, seq, head_dim].

    ``function`` is its name; ``in_pairs``: the elements ``2 i`` and ``2 i + 1`` of what it gets are a pair, and else
    ``i`` and ``i + head_dim / 2``; ``out_pairs``: so of what it returns; ``complex_angles``: its angles are one tensor
    of complex numbers.
    """

    function: str
    in_pairs: bool
    out_pairs: bool
    complex_angles: bool

    @property
    def neox(self) -> bool:
        """Whether the op rotates in its style of that name, once ``placed`` has put the elements in their places."""
        return not self.out_pairs

    def placed(self, x: torch.Tensor) -> torch.Tensor:
        """Heads [..., head_dim] with the elements where the rotated ones will be; ``x`` itself if they are there."""
        return x if self.in_pairs == self.out_pairs else self.copied(x)

    def copied(self, x: torch.Tensor) -> torch.Tensor:
        """A contiguous copy of heads [..., head_dim], with the elements where the rotated ones will be."""
        if self.in_pairs == self.out_pairs:
            return x.clone(memory_format=torch.contiguous_format)
        halves: torch.Tensor = x.unflatten(-1, (-1, 2)).transpose(-1, -2)
        return halves.clone(memory_format=torch.contiguous_format).flatten(-2)

    def takes(self, angles: Angles) -> bool:
        """Whether the function rotates by what a rotary module has returned."""
        return len(angles) == 1 if self.complex_angles else len(angles) == 2


BY_HALVES = RotaryForm("apply_rotary_pos_emb", in_pairs=False, out_pairs=False, complex_angles=False)
"""The form of Llama and of most models."""

FORMS = (
    BY_HALVES,
    # DeepSeek-V3's, whose weights have pairs beside each other
    RotaryForm("apply_rotary_pos_emb_interleave", in_pairs=True, out_pairs=False, complex_angles=False),
    # DeepSeek-V2's
    RotaryForm("apply_rotary_emb", in_pairs=True, out_pairs=True, complex_angles=True),
)


def known_functions(file: object) -> list[tuple[RotaryForm, Callable[..., tuple[torch.Tensor, torch.Tensor]]]]:
    """The functions of a model's file that have a known name, with their forms."""
    return [(form, getattr(file, form.function)) for form in FORMS if hasattr(file, form.function)]


def other_rotations(file: object) -> list[str]:
    """The names of a file's functions that rotate in no known form."""
    known = {form.function for form in FORMS}
    return sorted(name for name in vars(file) if name.startswith("apply_rotary_") and name not in known)


def cosines_and_sines(angles: Angles) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [1 or batch, seq, head_dim / 2] of each pair."""
    if len(angles) == 1:
        return angles[0].real, angles[0].imag
    half = angles[0].shape[-1] // 2
    return angles[0][..., :half], angles[1][..., :half]
