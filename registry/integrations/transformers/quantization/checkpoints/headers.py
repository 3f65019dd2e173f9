"""Names of the tensors in a checkpoint's files, read from the headers of safetensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from .....errors import InvalidArgumentError
from .layer_format import LayerFormat


@dataclass(frozen=True)
class TensorFiles:
    """The file of each tensor of a checkpoint, by the tensor's name."""

    files: Mapping[str, Path]

    @classmethod
    def of(cls, paths: Iterable[str | Path]) -> TensorFiles | None:
        """The tensors of safetensors files; None if a file is of another kind, whose names cost loading it.

        Raises InvalidArgumentError for a file that is cut off or no safetensors at all.
        """
        files: dict[str, Path] = {}
        for path in map(Path, paths):
            if path.suffix != ".safetensors":
                return None
            try:
                with safe_open(path, framework="pt") as opened:
                    files.update(dict.fromkeys(opened.keys(), path))
            except SafetensorError as fault:
                raise InvalidArgumentError(
                    f"{path} is no complete safetensors file: {fault}", hint="download or copy it again"
                ) from fault
        return cls(files)

    def layers(self, format_: LayerFormat) -> dict[str, dict[str, Path]]:
        """Files of the tensors of each packed layer, by the layer's name and the tensor's name in ``format_.names``."""
        found: dict[str, dict[str, Path]] = defaultdict(dict)
        for tensor, file in self.files.items():
            layer, _, name = tensor.rpartition(".")
            if name in format_.names:
                found[layer][name] = file
        return {layer: files for layer, files in found.items() if format_.is_packed(files.keys())}

    def check(self, format_: LayerFormat) -> None:
        """Raise InvalidArgumentError if a packed layer lacks a tensor, naming the tensor and the layer's files."""
        layers = self.layers(format_)
        if not layers and format_.has_layers:
            some = ", ".join(sorted({path.name for path in self.files.values()})[:3]) or "no file"
            raise InvalidArgumentError(
                f"{format_.method}: {some} has no tensor named {' or '.join(format_.names)}",
                hint="its config.json says that the checkpoint is quantised; is it another checkpoint's?",
            )
        for layer, files in layers.items():
            lacking = [f"{layer}.{name}" for name in format_.required(layer) if name not in files]
            if lacking:
                where = ", ".join(sorted({path.name for path in files.values()}))
                raise InvalidArgumentError(
                    f"{format_.method}: {', '.join(lacking)} is not in the checkpoint",
                    hint=f"{where} holds the layer's {', '.join(sorted(files))}; is a file of the checkpoint missing?",
                )
