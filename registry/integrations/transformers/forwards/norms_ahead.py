"""Norms that were computed before their module is called, together with the sum that they are of."""

from __future__ import annotations

import threading

import torch

from ....tracing import traced_operations


class NormsAhead(threading.local):
    """The latest norm of this thread that was computed ahead, while torch.compile traces a model.

    ``whole``: the layers of a model are traced in one program, so that a layer may compute the norm of the next.
    """

    def __init__(self) -> None:
        # for each thread, so that torch.compile never sees these attributes come into being
        self.whole = False
        self._norm: torch.nn.Module | None = None
        self._x: torch.Tensor | None = None
        self._normed: torch.Tensor | None = None
        self._operations = 0

    def keep(self, norm: torch.nn.Module, x: torch.Tensor, normed: torch.Tensor) -> None:
        """Keep what ``norm`` is to return for ``x``, unless another operation is traced before."""
        self._norm, self._x, self._normed = norm, x, normed
        self._operations = traced_operations()

    def take(self, norm: torch.nn.Module, x: torch.Tensor) -> torch.Tensor | None:
        """The result of ``norm`` for ``x`` if it was computed ahead, else None; each result is given once.

        None also after any other operation, of a hook for instance, since it may have written to ``x``.
        """
        if self._norm is not norm or self._x is not x or self._operations != traced_operations():
            return None
        normed = self._normed
        self.clear()
        return normed

    def clear(self) -> None:
        """Forget the norm, its input and its result."""
        self._norm = self._x = self._normed = None


AHEAD = NormsAhead()
"""The norms ahead of each thread."""
