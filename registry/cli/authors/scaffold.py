"""``registry scaffold``: a file to begin with, from a function of torch or from what torch.compile makes of one."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import RegistryError
from ...untrusted.file_kinds import why_no_file
from ..display import text
from ..display.outcomes import say_outcome, total
from ..options import Plugins, catalog_with

if TYPE_CHECKING:
    from ...problem import Value


class ScaffoldSource(StrEnum):
    """What a file is made from."""

    COMPILE = "torch.compile"
    REFERENCE = "reference"


def scaffold(
    op: Annotated[str, typer.Option("--op", metavar="OP", help="An op, e.g. softmax; for reference the new one.")],
    source: Annotated[
        ScaffoldSource, typer.Option("--from", metavar="SOURCE", help="torch.compile or reference.")
    ] = ScaffoldSource.COMPILE,
    function: Annotated[
        Path | None,
        typer.Option("--function", metavar="FILE", help="For reference: a file with the function, and inputs()."),
    ] = None,
    dims: Annotated[
        str | None,
        typer.Option("--dims", metavar="DIMS", help="For torch.compile: the problem, e.g. 'rows=64 cols=300'."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write; never overwritten.")
    ] = None,
    plugin: Plugins = None,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Check the file, as `registry check` does.")] = True,
) -> None:
    """Write a plugin file to begin with.

    --from torch.compile: the Triton kernels that torch.compile writes for the op's reference, with names to read and
    Triton's language alone, as an implementation of one problem (--dims, else an example of the op). No GPU is needed.
    An op that a library computes, as a product of matrices, is refused.

    --from reference: the contract of a new op. FILE has a function of tensors and numbers with the op's name, and
    inputs(), which returns example arguments; extents that are equal there become one dimension.

    Exit code 0: written, and nothing was found; 1: a check of the file failed; 2: there is nothing to write.
    """
    if source is ScaffoldSource.REFERENCE:
        made, target = _from_reference(op, function, out)
        problem = None
    else:
        made, target, problem = _from_compile(op, dims, out, plugin)
    try:
        with target.open("x", encoding="utf-8") as stream:
            stream.write(made)
    except FileExistsError:
        raise RegistryError(
            f"{target} exists already", hint="nothing was written; name another one with --out"
        ) from None
    text.say(f"{target} written")
    raise typer.Exit(_checked(target, problem) if check else 0)


def _from_reference(op: str, function: Path | None, out: Path | None) -> tuple[str, Path]:
    from ...authoring.naming import split_op
    from ...authoring.reference_start import op_from_reference

    vendor, _ = split_op(op)
    if function is None:
        raise RegistryError("--from reference needs --function FILE", hint="a file with the function, and inputs()")
    if fault := why_no_file(function):
        raise RegistryError(f"--function {function}: {fault}", hint="expected a Python file")
    target = out or Path(f"{vendor}.py")
    if target.stem not in {vendor, f"registry_{vendor}"}:
        raise RegistryError(f"--out {target}: a file with ops of {vendor} is called {vendor}.py")
    return op_from_reference(function, op), target


def _from_compile(
    op: str, dims: str | None, out: Path | None, plugin: Plugins
) -> tuple[str, Path, Mapping[str, Value]]:
    from ...authoring.compiled_start import problem_to_begin_with, start_from_compile
    from ..problems.dimensions import dimensions_of

    contract = catalog_with(plugin).op(op)
    target = out or Path(f"compiled_{op.rpartition('::')[2]}.py")
    if not target.stem.isidentifier():
        raise RegistryError(f"--out {target}: {target.stem} is no identifier, which names the implementation")
    problem = problem_to_begin_with(contract, dimensions_of(contract, dims.split()) if dims else None)
    return start_from_compile(contract, problem, target.stem), target, problem.dims


def _checked(target: Path, dims: Mapping[str, Value] | None) -> int:
    from ...checking.running import CheckRequest, check_plugin

    done = check_plugin(CheckRequest(str(target), dims=dims), say_outcome)
    text.say(total(done))
    return 0 if done.ok else 1
