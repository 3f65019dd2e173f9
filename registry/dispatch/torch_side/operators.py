"""torch.ops.kernel_registry.*: every op as an operator of torch, made from its schema.

An operator is opaque to torch.compile and torch.export: the kernel is chosen inside, when the compiled program runs, so
that one graph serves every shape with that shape's own winner. A plugin's op ``vendor::name`` is
``torch.ops.vendor.name``. One dispatcher of the process chooses the kernels, see ``serve``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch._ops import OpOverload

from ...arguments.schema import tensors_in
from ...contract import Op
from ...errors import InvalidDefinitionError, RegistryError, UnknownNameError
from ...forking import renewed_in_child
from ...problem import TensorSpec
from .conforming import conforming_reference
from .gradients import Bound
from .profiles import count_flops, count_gradient_flops
from .reference_operator import define_reference_gradient, has_reference_operator, reference_overload
from .states import gradient_needed, keeping_dtype, traced_by_torch
from .torch_private import below_autograd, dispatch_modes

NAMESPACE = "kernel_registry"


class Dispatches(Protocol):
    """The part of a Dispatcher that torch's operators use."""

    def bound(self, name: str) -> Bound:
        """The bound op of that name. Raises UnknownNameError."""


class Serving:
    """What torch's operators use: the dispatcher that runs their calls, and ``traced``, told of each op in a trace."""

    def __init__(self) -> None:
        self.dispatcher: Dispatches | None = None
        self.traced: Callable[[Op], None] = lambda _: None
        self.lock = renewed_in_child(self, "lock", threading.RLock)


@dataclass(frozen=True)
class _Defined:
    schema: str
    by_reference: bool
    library: torch.library.Library
    overload: OpOverload[..., Any]


SERVING = Serving()

_defined: dict[str, _Defined] = {}


def serve(dispatcher: Dispatches | None) -> Dispatches | None:
    """Let this dispatcher run torch.ops.kernel_registry.* from now on, in every thread; returns the former one."""
    former, SERVING.dispatcher = SERVING.dispatcher, dispatcher
    return former


def serves(bound: Bound) -> bool:
    """True if torch's operator of the op runs this bound op."""
    dispatcher = SERVING.dispatcher
    try:
        return dispatcher is not None and dispatcher.bound(bound.op.name) is bound
    except UnknownNameError:
        return False


def define_box() -> None:
    """Define torch's operators of the box's ops: it takes less than a millisecond, and imports only contracts.

    Operators of other ops are defined when torch first traces a call.
    """
    from ...contracts import BOX

    for op in BOX:
        define(op)


def define(op: Op) -> OpOverload[..., Any]:
    """torch's operator of ``op``. Raises InvalidDefinitionError if another library has defined one of that name."""
    with SERVING.lock:
        known = _defined.get(op.name)
        if known is None or (known.schema, known.by_reference) != (op.schema, has_reference_operator(op)):
            if known is not None:
                # another catalog's op of the same name: only tests have several
                known.library._destroy()
                del _defined[op.name]
            known = _defined[op.name] = _define(op)
        return known.overload


def reference_gradient_of(bound: Bound) -> OpOverload[..., Any] | None:
    """torch's operator of the gradients by the op's reference; None if torch's operators serve another dispatcher."""
    if not serves(bound):
        return None
    define(bound.op)
    overload = reference_overload(qualified_name(bound.op))
    count_gradient_flops(bound.op, overload.overloadpacket)
    return overload


def overload_of(name: str) -> OpOverload[..., Any]:
    """torch's operator of the op of that name."""
    known = _defined.get(name)
    return define(serving_dispatcher().bound(name).op) if known is None else known.overload


def name_of(overload: OpOverload[..., Any]) -> str | None:
    """The name of the op that torch's operator belongs to; None for an operator of others."""
    name = str(overload.name()).removeprefix(f"{NAMESPACE}::")
    known = _defined.get(name)
    return name if known is not None and known.overload is overload else None


def qualified_name(op: Op) -> str:
    """The name of torch's operator of ``op``: ``kernel_registry::softmax``, ``acme::row_sum``."""
    return op.name if "::" in op.name else f"{NAMESPACE}::{op.name}"


def _define(op: Op) -> _Defined:
    namespace, _, name = qualified_name(op).rpartition("::")
    schema = op.schema.removeprefix(f"{namespace}::")
    # a second "DEF" of a namespace is an error, a fragment is not
    library = torch.library.Library(namespace, "FRAGMENT")
    try:
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    except RuntimeError as fault:
        raise InvalidDefinitionError(
            f"op {op.name!r}: torch.ops.{namespace}.{name} cannot be defined: {str(fault).splitlines()[0]}",
            hint="an operator of that name exists already: give the op another name",
        ) from None
    overload: OpOverload[..., Any] = getattr(getattr(torch.ops, namespace), name).default
    kernels = _Kernels(op.name, overload)
    library.impl(name, kernels.compute, "CompositeExplicitAutograd")
    # torch calls it in its mode of fake tensors, so that tensors that a reference makes are fake, too
    torch.library.register_fake(f"{namespace}::{name}", kernels.fake, lib=library)
    library.impl(name, kernels.autograd, "Autograd")
    # not "FuncTorchBatched": below a transform torch brings back the caller's autocast for every operation
    library.impl(name, kernels.transformed, "FuncTorchDynamicLayerFrontMode")
    if has_reference_operator(op):
        define_reference_gradient(library, qualified_name(op), op, lambda: kernels.bound().op)
    return _Defined(op.schema, has_reference_operator(op), library, overload)


class _Kernels:
    """torch's kernels of one operator, by dispatch key. torch leaves out arguments that equal their defaults."""

    def __init__(self, name: str, overload: OpOverload[..., Any]) -> None:
        self.name = name
        self._overload = overload
        self._found: tuple[Dispatches | None, Bound | None] = (None, None)

    def compute(self, *args: Any, **attributes: Any) -> Any:
        """Real tensors, below autograd: run the fastest known implementation."""
        bound = self.bound()
        if dispatch_modes():
            return _in_plain_torch(conforming_reference(bound.op), bound.op, args, attributes)
        if torch.is_grad_enabled():
            with torch.no_grad():
                return bound.flat(*args, **attributes)
        return bound.flat(*args, **attributes)

    def fake(self, *args: Any, **attributes: Any) -> Any:
        """Fake and meta tensors: return the shapes, dtypes and strides of the outputs. Arguments are not checked, since
        torch reports an error of a fake as its own: the real call does that. For arguments without a result, the
        check's error is raised, which torch quotes.
        """
        op = self.bound().op
        SERVING.traced(op)
        try:
            return _in_plain_torch(op.fake or op.reference, op, args, attributes)
        except Exception as fault:
            refusal = _refusal(op, args, attributes)
            if refusal is None:
                raise
            raise refusal from fault

    def autograd(self, *args: Any, **attributes: Any) -> Any:
        """The first kernel of a call: if torch traces, the call is recorded as one operator, else it runs."""
        bound = self.bound()
        tensors = tensors_in((*args, *attributes.values()))
        if not traced_by_torch(tensors):
            return bound.flat(*args, **attributes)
        values = bound.op.parsed.bind(args, attributes)
        needed = gradient_needed(tensors)
        if needed and (fault := bound.gradients.refusal(values)):
            raise fault
        if below_autograd is None:
            return _in_plain_torch(bound.op.reference, bound.op, args, attributes)
        return bound.gradients.recording(self._below)(*values) if needed else self._below(*values)

    def transformed(self, *args: Any, **attributes: Any) -> Any:
        """Under vmap, func.grad or func.jvp: run the reference, whose operations torch can transform."""
        op = self.bound().op
        return _in_plain_torch(op.reference, op, args, attributes)

    def bound(self) -> Bound:
        """The bound op of the current dispatcher."""
        dispatcher, bound = self._found
        if bound is None or dispatcher is not SERVING.dispatcher:
            current = serving_dispatcher()
            bound = current.bound(self.name)
            self._found = current, bound
        return bound

    def _below(self, *values: Any) -> Any:
        assert below_autograd is not None
        with below_autograd():
            return called(self._overload, self.bound().op, values)


def _in_plain_torch(run: Callable[..., Any], op: Op, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> Any:
    """The result of ``run``, made of torch's operations, for a call; also under autocast in the arguments' dtype."""
    values = op.parsed.bind(args, attributes)
    tensors = tensors_in(values)
    return keeping_dtype(run, tensors)(*values)


def _refusal(op: Op, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> RegistryError | None:
    """The error by which the op refuses the arguments of a call; None if it accepts them, or cannot tell.

    Sizes that torch.compile has made symbols are those of the call that it traces: an op's checks take integers.
    """
    try:
        values = tuple([_hinted(value) for value in op.parsed.bind(args, attributes)])
        op.pose(op.arguments(op.parsed.coerced(values)).mapped(_with_known_sizes))
    except RegistryError as refusal:
        return refusal
    except Exception:  # a size or number that only the compiled program knows: the caller's own error is told
        return None
    return None


def _with_known_sizes(spec: TensorSpec) -> TensorSpec:
    """The spec in integers, for a tensor some of whose sizes are symbols."""
    return replace(spec, shape=_hinted(spec.shape), strides=_hinted(spec.strides))


def _hinted(value: Any) -> Any:
    """The number that a symbol has in the call that is traced; other values, and symbols without one, are unchanged."""
    if isinstance(value, list | tuple):
        return tuple([_hinted(one) for one in value])
    hint = value.node.hint if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else None
    return value if hint is None else hint


def called(overload: OpOverload[..., Any], op: Op, values: tuple[Any, ...]) -> Any:
    """``overload`` called with the schema's values in order."""
    count_flops(op, overload.overloadpacket)
    count = sum(not parameter.keyword_only for parameter in op.parsed.parameters)
    return overload(*values[:count], **dict(zip(op.parsed.names[count:], values[count:], strict=True)))


def serving_dispatcher() -> Dispatches:
    """The dispatcher that runs torch's operators. Raises RegistryError without one."""
    if SERVING.dispatcher is None:
        raise RegistryError("no dispatcher serves torch.ops.kernel_registry", hint="import registry")
    return SERVING.dispatcher
