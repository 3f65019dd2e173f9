"""The registry's layers as a local kernel: ``kernels`` runs this file, beside ``metadata.json``, as a module alone."""

from registry.integrations.hf_kernels import layers

__all__ = ["layers"]
