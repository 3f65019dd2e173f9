"""Checks that an op and its backward op fit: the backward op takes what the op saves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..arguments.schema import Parameter
from ..contract import Op
from ..errors import InvalidDefinitionError, UnknownNameError, did_you_mean


def check_backward(op: Op, known: Mapping[str, Op]) -> None:
    """Raise InvalidDefinitionError if ``op`` does not fit its backward op, or an op that names it as backward op.

    Either may be defined first: a pair is checked when its second op is defined.
    """
    pairs = [(other, op) for other in known.values() if other.backward is not None and other.backward.op == op.name]
    check_declaration(op)
    if op.backward is not None:
        backward = known.get(op.backward.op or "")
        if backward is not None:
            pairs.append((op, backward))
    for forward, backward in pairs:
        if misfits := _misfits(forward, backward):
            raise InvalidDefinitionError(
                f"op {forward.name!r}: its backward op {backward.name} {'; '.join(misfits)}",
                hint="expected grad_<output>, then what is saved, then the attributes; outputs named grad_<input>",
            )


def check_declaration(op: Op) -> None:
    """Raise InvalidDefinitionError if what an op declares of its gradient, if anything, does not fit its schema."""
    if op.backward is None:
        return
    schema = op.parsed
    if schema.mutates:
        raise InvalidDefinitionError(
            f"op {op.name!r}: it writes to its arguments, so it has no backward",
            hint="leave backward out, or return new tensors in the place of what is written to",
        )
    alone = op.backward.op is None and not op.backward.by_reference
    if alone and (len(schema.outputs) != 1 or op.backward.saved):
        raise InvalidDefinitionError(
            f"op {op.name!r}: Backward(op=None) is for one output and nothing saved",
            hint="it says that the gradient of every input is that of the output; Backward.reference() computes others",
        )
    if op.backward.by_reference and (op.backward.saved or op.backward.op is not None):
        raise InvalidDefinitionError(
            f"op {op.name!r}: a backward by the reference names neither an op nor what is saved",
            hint="write Backward.reference()",
        )
    if op.backward.inline and not op.backward.by_reference:
        raise InvalidDefinitionError(
            f"op {op.name!r}: inline is for a backward by the reference", hint="write Backward.reference(inline=True)"
        )
    tensors = {parameter.name for parameter in schema.parameters if parameter.holds_tensors} | {*schema.outputs}
    _check_names(f"op {op.name!r}: its backward saves", op.backward.saved, tensors)
    said = op.backward.differentiable
    _check_names(f"op {op.name!r}: differentiable in its backward are", said or (), schema.outputs)
    if said == () and not op.backward.by_reference:
        raise InvalidDefinitionError(
            f"op {op.name!r}: no output is differentiable in its backward", hint="write Backward.none()"
        )


def _check_names(told: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise InvalidDefinitionError, with the nearest names, if any of ``given`` is not ``known``."""
    names = sorted(known)
    if unknown := [name for name in given if name not in names]:
        near = UnknownNameError("tensor", unknown[0], names).hint
        hint = near if near.startswith("did you mean") else f"expected some of {names}"
        raise InvalidDefinitionError(f"{told} {', '.join(unknown)}", hint=hint)


def check_backward_ops(ops: Iterable[Op], known: Mapping[str, Op]) -> None:
    """Raise InvalidDefinitionError, with the nearest names, if the backward op of one of ``ops`` is not ``known``."""
    for op in ops:
        if op.backward is None or op.backward.op is None or op.backward.op in known:
            continue
        named = op.backward.op
        near = did_you_mean(named, known.keys() - {op.name})  # no op is its own backward op
        raise InvalidDefinitionError(
            f"op {op.name!r}: its backward op {named!r} is defined by nobody ({op.backward.place})",
            hint=f"{near + ' Else' if near else ''} define it by @registry.defines beside {op.name}".strip()
            + ", or write Backward.reference(), which needs none",
        )


def _misfits(forward: Op, backward: Op) -> list[str]:
    """What a backward op takes and returns that does not fit ``forward``, each as the end of a sentence."""
    assert forward.backward is not None
    given = {parameter.name: parameter for parameter in forward.parsed.parameters}
    gradients = {f"grad_{name}" for name in forward.parsed.outputs}
    saved, names = forward.backward.saved, backward.parsed.names
    found = []
    for parameter in backward.parsed.parameters:
        if parameter.name in gradients or parameter.name in saved:
            own = given.get(parameter.name) if parameter.name in saved else None
            expected = "Tensor" if own is None else own.kind
            if parameter.kind != expected:
                found.append(f"takes {parameter.name} as {parameter.kind}, expected a {expected}")
        elif misfit := _misfit(forward, parameter, given):
            found.append(misfit)
    found += [f"does not take {name}, which is saved" for name in saved if name not in names]
    if not gradients.intersection(names):
        found.append(f"takes no gradient, expected {', '.join(sorted(gradients))}")
    if (said := forward.backward.differentiable) is not None:
        found += [f"does not take grad_{name}, which is differentiable" for name in said if f"grad_{name}" not in names]
        silent = sorted(name for name in gradients.intersection(names) if name.removeprefix("grad_") not in said)
        found += [f"takes {name}, the gradient of an output that is not differentiable" for name in silent]
    inputs = {f"grad_{name}" for name, parameter in given.items() if parameter.holds_tensors}
    found += [f"returns {name}, the gradient of no input" for name in backward.parsed.outputs if name not in inputs]
    if backward.parsed.mutates:
        found.append("writes to its arguments")
    return found


def _misfit(forward: Op, parameter: Parameter, given: Mapping[str, Parameter]) -> str:
    """How a parameter that is neither a gradient nor saved fits no ``need_<input>`` and no attribute; "" if it does."""
    name, kind, attribute = parameter.name, parameter.kind, given.get(parameter.name)
    needed = given.get(name.removeprefix("need_")) if name.startswith("need_") and attribute is None else None
    if needed is not None and needed.holds_tensors:
        kinds = ("bool", "int[]") if needed.kind == "Tensor[]" else ("bool",)
        fits = kind in kinds and not parameter.optional
        return "" if fits else f"takes {name} as {kind}, expected a {' or an '.join(kinds)}"
    if attribute is None or attribute.holds_tensors:
        return f"takes {name}, which is neither a gradient, nor saved, nor an attribute"
    fits = (attribute.kind, attribute.optional) == (kind, parameter.optional)
    return "" if fits else f"takes {name} as {kind}, but {forward.name} as {attribute.kind}"
