"""The problems of a run of ``tune``, of whatever source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from ...errors import RegistryError, UnknownNameError
from .options import GROUP_SIZE, ModelOptions, sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...device import Device
    from ...discovery.catalog import Catalog
    from ...tuner.models.workload import Workload
    from ...tuner.shapes.shapes import Shapes


_TOLD = 5
"""The heaviest missed problems that are told."""


def check_source(shapes: Path | None, model: ModelOptions, *, misses: bool) -> None:
    """Raise RegistryError unless exactly one source of problems was given, and no option of another."""
    sources = {"--shapes": shapes, "--model": model.model, "--from-misses": misses or None}
    given = [name for name, value in sources.items() if value is not None]
    if not given:
        raise RegistryError(
            "no problems: expected --shapes FILE, --model NAME or --from-misses", hint="see tune --help"
        )
    if len(given) > 1:
        raise RegistryError(
            f"{' and '.join(given)} were given", hint="expected one source of problems: leave others out"
        )
    if model.model is None and model.given:
        raise RegistryError(f"{', '.join(model.given)} without --model", hint="they say how a model runs: add --model")


def told_shapes(
    shapes: Path | None, model: ModelOptions, catalog: Catalog, ops: Sequence[str], device: Device
) -> tuple[Shapes, tuple[str, ...]]:
    """The problems to tune, and notes on them. ``ops`` keeps only theirs; ``device`` is one that they are tuned on."""
    from ...tuner.shapes.shapes import read_shapes

    if shapes is not None:
        return read_shapes(shapes, catalog, ops), ()
    if model.model is not None:
        return _of_model(model.model, model, catalog, ops)
    return _missed(catalog, ops, device)


def _missed(catalog: Catalog, ops: Sequence[str], device: Device) -> tuple[Shapes, tuple[str, ...]]:
    """What calls missed, and notes that tell where most of its time is, as estimated."""
    from ...dispatch.recording.misses import MISSES_VARIABLE, misses_file
    from ...tuner.planning.weights import weigh_roughly
    from ...tuner.shapes.shapes import read_shapes

    path = misses_file()
    if not path.exists():
        raise RegistryError(
            f"{path}: no missed calls were counted",
            hint=f"run a program with {MISSES_VARIABLE}=1 first; with a path in it, give this command the same",
        )
    found = read_shapes(path, catalog, ops)
    shares = weigh_roughly(found.counts, catalog.op, device)
    heaviest = sorted(shares.items(), key=lambda pair: -pair[1])[:_TOLD]
    return found, tuple(
        f"{problem}: {share:.0%} of the missed time, as estimated; {found.counts[problem]} calls"
        for problem, share in heaviest
    )


def _of_model(model: str, told: ModelOptions, catalog: Catalog, ops: Sequence[str]) -> tuple[Shapes, tuple[str, ...]]:
    from ...tuner.models.derive import derive, described
    from ...tuner.shapes.written import write_shapes

    for name, value, least in (("--tensor-parallel", told.tensor_parallel, 1), ("--page", told.page, 0)):
        if value < least:
            raise RegistryError(f"{name} {value}", hint=f"expected a whole number of at least {least}")
    known = catalog.ops()
    for op in ops:
        if op not in known:
            raise UnknownNameError("op", op, known)
    decoder = described(model, told.tensor_parallel)
    workload = _workload(told, decoder.dtype)
    found = derive(decoder, workload, catalog, ops)
    if told.save is not None:
        write_shapes(told.save, found.shapes, (*_remarks(told, workload), *found.notes))
    return found.shapes, found.notes


def _workload(told: ModelOptions, dtype: str) -> Workload:
    from ...tuner.models.workload import Quantization, Workload

    kinds = get_args(Quantization)
    if told.quantize not in kinds:
        raise RegistryError(f"--quantize {told.quantize!r:.40}", hint=f"expected one of {', '.join(kinds)}")
    if told.group_size < 1:
        raise RegistryError(f"--group-size {told.group_size}", hint="expected a positive whole number, e.g. 128")
    _refuse_unused(told)
    return Workload(
        batch=sizes("--batch", told.batch, Workload.batch),
        context=sizes("--context", told.context, Workload.context),
        dtype=told.dtype or dtype,
        quantize=cast("Quantization", told.quantize),
        group_size=told.group_size,
        symmetric=told.symmetric,
        lm_head=told.lm_head,
        separate=told.separate,
        page=told.page,
        training=told.training,
    )


def _refuse_unused(told: ModelOptions) -> None:
    """Raise RegistryError for options that the model, as it is to run, has no use for."""
    unused: dict[str, str] = {}
    packed = told.quantize not in ("none", "fp8", "w8a8")
    for name, given in (("--group-size", told.group_size != GROUP_SIZE), ("--symmetric", told.symmetric)):
        if given and not packed:
            unused[name] = f"--quantize {told.quantize}"
    if told.lm_head and told.quantize == "none":
        unused["--lm-head"] = "--quantize none"
    if told.page and told.training:
        unused["--page"] = "--training"
    for name, beside in unused.items():
        raise RegistryError(f"{name} beside {beside}, which has no use for it", hint=f"leave {name} out")


def _remarks(told: ModelOptions, workload: Workload) -> tuple[str, ...]:
    """The head of a file of derived problems."""
    from ... import __version__
    from ...tuner.models.workload import NEW_TOKENS

    batch, context = (", ".join(map(str, each)) for each in (workload.batch, workload.context))
    kind = "a training step" if workload.training else f"a prompt and {NEW_TOKENS} new tokens"
    layers = "layers and head" if workload.lm_head else "layers"
    form = "" if workload.quantize == "none" else f", {layers} in {workload.quantize}"
    form += f", one of {told.tensor_parallel} GPUs" if told.tensor_parallel > 1 else ""
    return (
        f"Derived by kernel-registry {__version__} from {told.model}: {kind}, {workload.dtype}{form}",
        f"sequences at once: {batch}; tokens of each: {context}; counts: calls in {kind}",
    )
