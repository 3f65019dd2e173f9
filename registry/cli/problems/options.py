"""The options of ``tune`` that name its problems."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ...errors import RegistryError
from ..options import SEVERAL, whole_number

ShapesFile = Annotated[
    Path | None,
    typer.Option(
        "--shapes", metavar="FILE", help="The problems, e.g. configs/llm.yaml; docs/shapes.md has the grammar."
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="NAME|FILE",
        help="The problems of a decoder's prompts and decode steps, from its config.json or a name: llama-3.1-8b, or "
        "meta-llama/Llama-3.1-8B. No weights are needed.",
    ),
]  # fmt: skip
FromMisses = Annotated[
    bool,
    typer.Option(
        "--from-misses",
        help="The problems that calls met without a winner of their own, as counted in the file of "
        "KERNEL_REGISTRY_MISSES, the heaviest first; with --time-limit only so many of them.",
    ),
]
Batches = Annotated[
    list[str] | None,
    typer.Option("--batch", metavar="N", help=f"With --model: sequences at once. {SEVERAL} Default: 1 and 16."),
]
Contexts = Annotated[
    list[str] | None,
    typer.Option(
        "--context", metavar="TOKENS",
        help=f"With --model: tokens of a prompt, and of its cache at a decode step. {SEVERAL} Default: 1024.",
    ),
]  # fmt: skip
ModelDtype = Annotated[
    str | None,
    typer.Option("--model-dtype", metavar="DTYPE", help="With --model, e.g. float16. Default: the config's."),
]
TensorParallel = Annotated[
    int, typer.Option("--tensor-parallel", metavar="GPUS", parser=whole_number, help="With --model: one GPU's share.")
]
QuantizedAs = Annotated[
    str,
    typer.Option(
        "--quantize", metavar="none|int8|int4|int2|int1|nf4|fp8|w8a8|w4a8",
        help="With --model: how the weights of its layers are held, and with fp8 (float8), w8a8 and w4a8 (int8) what"
        " activations are rounded to; the head is not quantised without --lm-head.",
    ),
]  # fmt: skip
GroupSize = Annotated[
    int,
    typer.Option(
        "--group-size",
        metavar="K",
        parser=whole_number,
        help="With --quantize, but fp8 and w8a8: weights that share a scale.",
    ),
]
Symmetric = Annotated[
    bool, typer.Option("--symmetric", help="With --quantize, but fp8 and w8a8: packed weights without zero points.")
]
LmHead = Annotated[
    bool,
    typer.Option(
        "--lm-head", help="With --quantize: the head, too, as apply's lm_head packs it where its weight is not tied."
    ),
]
Separate = Annotated[
    bool,
    typer.Option(
        "--separate",
        help="With --model: queries, keys and values, gate and up are layers of their own, as in a model that "
        "transformers has loaded quantised, not fused.",
    ),
]
Page = Annotated[
    int,
    typer.Option(
        "--page", metavar="SLOTS", parser=whole_number,
        help="With --model: slots of a page of the cache; 0 is a cache in rows, as transformers has it.",
    ),
]  # fmt: skip
Training = Annotated[
    bool, typer.Option("--training", help="With --model: forward and backward of a training step instead.")
]
SaveShapes = Annotated[
    Path | None,
    typer.Option(
        "--save-shapes", metavar="FILE",
        help="With --model: also write its problems as a shapes file; with --dry-run nothing else happens.",
    ),
]  # fmt: skip


@dataclass(frozen=True)
class ModelOptions:
    """What ``tune`` was told of a model."""

    model: str | None
    batch: list[str] | None
    context: list[str] | None
    dtype: str | None
    tensor_parallel: int
    quantize: str
    group_size: int
    symmetric: bool
    lm_head: bool
    separate: bool
    page: int
    training: bool
    save: Path | None

    @property
    def given(self) -> list[str]:
        """The options that only a model has and that were given."""
        told = {
            "--batch": self.batch,
            "--context": self.context,
            "--model-dtype": self.dtype,
            "--tensor-parallel": self.tensor_parallel != 1,
            "--quantize": self.quantize != "none",
            "--group-size": self.group_size != GROUP_SIZE,
            "--symmetric": self.symmetric,
            "--lm-head": self.lm_head,
            "--separate": self.separate,
            "--page": self.page,
            "--training": self.training,
            "--save-shapes": self.save,
        }
        return [name for name, value in told.items() if value]


GROUP_SIZE = 128


def sizes(option: str, given: list[str] | None, default: tuple[int, ...]) -> tuple[int, ...]:
    """The positive integers of an option, repeated or with commas. Raises RegistryError for anything else."""
    parts = [part.strip() for value in given or () for part in value.split(",")]
    for part in parts:
        if not part.isdecimal() or not 0 < int(part) < 2**31:
            raise RegistryError(f"{option} {part!r:.40}", hint="expected positive whole numbers, e.g. 1,16")
    return tuple(map(int, parts)) or default
