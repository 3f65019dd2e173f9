"""A problem with its solutions, written as files in KernelBench's form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"


@dataclass(frozen=True)
class Pair:
    """``forward`` is the body of ``Model.forward``; ``right`` of a right ``ModelNew``, ``out`` of others by name.

    ``inputs``: expressions of its tensors, by name. ``modules``: lines of ``__init__``, of both models.
    """

    name: str
    inputs: Mapping[str, str]
    forward: str
    right: str
    out: Mapping[str, str] = field(default_factory=dict)
    modules: str = "pass"

    def write(self, folder: Path) -> Path:
        """Write the problem and, in a folder beside it, its solutions; returns the problem's path."""
        folder.mkdir(parents=True, exist_ok=True)
        given = ", ".join(self.inputs.values())
        tail = f"\n\ndef get_inputs():\n    return [{given}]\n\n\ndef get_init_inputs():\n    return []\n"
        problem = folder / f"{self.name}.py"
        problem.write_text(_HEAD + self._model("Model", self.forward) + tail)
        solutions = folder / self.name
        solutions.mkdir()
        for told, body in {"right": self.right, **self.out}.items():
            (solutions / f"{self.name}_{told}.py").write_text(_HEAD + self._model("ModelNew", body))
        return problem

    def _model(self, name: str, forward: str) -> str:
        lines = "\n".join(f"        {line}" for line in self.modules.splitlines())
        body = "\n".join(f"        {line}" for line in forward.splitlines())
        return (
            f"class {name}(nn.Module):\n    def __init__(self):\n        super().__init__()\n{lines}\n\n"
            f"    def forward(self, {', '.join(self.inputs)}):\n{body}\n"
        )


KEPT = """key = {x}.data_ptr()
kept = self.__dict__.setdefault("kept", {{}})
if key not in kept:
    kept[key] = {y}
return kept[key]"""
"""A cheat: the result of an earlier call whose input lay at this address."""

SUMMED = """key = float({x}.sum())
kept = self.__dict__.setdefault("kept", {{}})
if key not in kept:
    kept[key] = {y}
return kept[key]"""
"""A cheat: the result of an earlier call whose input had this sum."""

ONCE = """if "kept" not in self.__dict__:
    self.__dict__["kept"] = {y}
return self.__dict__["kept"]"""
"""A cheat: the result of the first call."""

SHORT = """y = {y}
y.view(-1)[-1] = 0
return y"""
"""Wrong: the last element is left out."""
