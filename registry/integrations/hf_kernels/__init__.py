"""The registry's layers for Hugging Face's ``kernels``: what ``kernelize`` puts in the place of marked layers."""

from __future__ import annotations

from importlib.util import find_spec

from ...errors import UnsupportedError


def _check_installed() -> None:
    missing = [name for name in ("kernels", "transformers") if find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"registry.integrations.hf_kernels: {' and '.join(missing)} not installed",
            hint="pip install 'kernel-registry[hf-kernels]'",
        )


_check_installed()

from .mapping import LAYERS, kernel_mapping  # noqa: E402

__all__ = ["LAYERS", "kernel_mapping"]
