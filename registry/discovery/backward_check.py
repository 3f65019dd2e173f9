"""Whether an op and its backward op fit: what one saves, the other takes."""

from __future__ import annotations

from collections.abc import Mapping

from ..contract import Op
from ..errors import InvalidDefinitionError


def check_backward(op: Op, known: Mapping[str, Op]) -> None:
    """Raise InvalidDefinitionError if ``op`` does not fit its backward op, or the ops whose backward it is.

    Either may be registered first: what is not ``known`` yet is checked when it comes.
    """
    pairs = [(other, op) for other in known.values() if other.backward is not None and other.backward.op == op.name]
    if op.backward is not None:
        _check_declaration(op)
        backward = known.get(op.backward.op or "")
        if backward is not None:
            pairs.append((op, backward))
    for forward, backward in pairs:
        if misfits := _misfits(forward, backward):
            raise InvalidDefinitionError(
                f"op {forward.name!r}: its backward op {backward.name} {'; '.join(misfits)}",
                hint="expected grad_<output>, then what is saved, then the attributes; outputs named grad_<input>",
            )


def _check_declaration(op: Op) -> None:
    """What a Backward says must be possible, whatever op computes it."""
    assert op.backward is not None
    schema = op.parsed
    if schema.mutates:
        raise InvalidDefinitionError(f"op {op.name!r}: it writes to its arguments, so it has no backward")
    if op.backward.op is None and (len(schema.outputs) != 1 or op.backward.saved):
        raise InvalidDefinitionError(
            f"op {op.name!r}: Backward(op=None) is for one output and nothing saved",
            hint="it says that the gradient of every input is that of the output",
        )
    tensors = {parameter.name for parameter in schema.parameters if parameter.kind == "Tensor"} | {*schema.outputs}
    if unknown := [name for name in op.backward.saved if name not in tensors]:
        raise InvalidDefinitionError(
            f"op {op.name!r}: its backward saves {', '.join(unknown)}", hint=f"expected some of {sorted(tensors)}"
        )


def _misfits(forward: Op, backward: Op) -> list[str]:
    """What is wrong with ``backward`` as the backward op of ``forward``."""
    assert forward.backward is not None
    given = {parameter.name: parameter for parameter in forward.parsed.parameters}
    gradients = {f"grad_{name}" for name in forward.parsed.outputs}
    saved = forward.backward.saved
    found = []
    for parameter in backward.parsed.parameters:
        name, attribute = parameter.name, given.get(parameter.name)
        if name in gradients or name in saved:
            if parameter.kind != "Tensor":
                found.append(f"takes {name} as {parameter.kind}, expected a Tensor")
        elif attribute is None or attribute.kind == "Tensor":
            found.append(f"takes {name}, which is neither a gradient, nor saved, nor an attribute")
        elif (attribute.kind, attribute.optional) != (parameter.kind, parameter.optional):
            found.append(f"takes {name} as {parameter.kind}, but {forward.name} as {attribute.kind}")
    found += [f"does not take {name}, which is saved" for name in saved if name not in backward.parsed.names]
    if not gradients & {*backward.parsed.names}:
        found.append(f"takes no gradient, expected {', '.join(sorted(gradients))}")
    inputs = {f"grad_{name}" for name, parameter in given.items() if parameter.kind == "Tensor"}
    found += [f"returns {name}, the gradient of no input" for name in backward.parsed.outputs if name not in inputs]
    if backward.parsed.mutates:
        found.append("writes to its arguments")
    return found
