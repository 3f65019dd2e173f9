"""The contract of one operation: its semantics, the problem that a call poses, and the tolerance of a result."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Hashable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch

from ..arguments.inputs import posed_by_inputs
from ..arguments.loaded_parameters import loaded_parameters
from ..arguments.on_meta import META, OnMeta
from ..arguments.schema import Schema, tensors_in
from ..arguments.specs import quick_spec
from ..arguments.traits import FamilyTraits
from ..author_code import at
from ..errors import InvalidArgumentError, InvalidDefinitionError, UnknownNameError
from ..problem import (
    Arguments,
    Problem,
    TensorSpec,
    Traits,
    Value,
    canonical_json,
    check_choice,
    check_choices,
    check_positive,
    torch_dtype,
)
from .canonical import OtherForms
from .fake import RowMajor, Rule
from .field_checks import check_fields
from .gradient import Backward
from .packed_call import Packed
from .tolerance import Comparator, Floor, Tolerance
from .transfer import Range

Outputs = torch.Tensor | tuple[torch.Tensor, ...] | None
"""The outputs of a call as it returns them: one tensor, a tuple of several, or None if the schema has none."""

COUNT = "count"
"""The key in a shapes file, beside dimensions, for the number of a program's calls. No dimension may be named so."""

_MOST_KEPT = 1024

_NAME = re.compile(r"([a-z][a-z0-9_]*::)?[a-z][a-z0-9_]*\Z")


def as_tuple(outputs: Outputs) -> tuple[torch.Tensor, ...]:
    """None, one output or several, as a tuple."""
    if outputs is None:
        return ()
    return outputs if isinstance(outputs, tuple) else (outputs,)


@dataclass(frozen=True, eq=False)
class Op:
    """One operation. See docs/writing-an-op.md.

    schema     torch's schema language with named outputs; ``Tensor(a!)`` for what is mutated
    version    bump it when the semantics change: stored winners of other versions are then ignored
    reference  the semantics: plain torch, takes the schema's arguments in order, writes to those that the schema says
               it mutates, returns the outputs or None where there are none, keeps the dtype, accumulates in at
               least float32, is right for float64 inputs and differentiable where the op is
    problem    Arguments -> the problem's dimensions by name; raises InvalidArgumentError for what the op does not
               accept. The host adds the traits: see ``pose``
    inputs     (problem, kind, generator) -> the schema's arguments in order, tensors on ``generator.device``
    kinds      the names of input distributions that ``inputs`` knows; verification uses every one
    examples   dimensions of small problems worth checking, odd ones among them; ``registry.testing`` uses them
    check      raises InvalidArgumentError for dimensions that no call could have, e.g. of a shapes file
    check_data  raises an error, such as OutOfRangeError, for contents of tensors that the op does not accept, e.g. an
               index outside of a table. It takes the call's values by name, and may wait for the device: dispatch calls
               it, after ``problem``, only under ``KERNEL_REGISTRY_CHECK=1``
    floor      Problem -> Floor
    tolerance  how far a result may be from the reference
    tolerances by name, the results that need a tolerance of their own
    compare    by name, the results that a function judges instead of a tolerance, see ``Comparator``
    static     dimensions that must be equal for a tuned config to be considered for another problem
    dynamic    dimensions (int) along which the nearest tuned problem is looked for
    choices    further static dimensions, each with the texts or booleans that it may be
    added      values of ``choices`` that the op got after implementations of it had been written, which cannot refuse
               what they do not know: ``{"kv_dtype": ("int8",)}``. Only an implementation that names a value in its own
               ``added`` runs it
    distributions  further static dimensions for the distribution of data that decide the time (routing skew, lengths),
               each with its names, the usual one first. ``inputs`` draws by them. A call's data are not read: its
               problem has the first name, and takes a winner of another name if the first has none
    view       Arguments -> Arguments in the order of the dimensions, if calls may give them otherwise: the traits are
               those of the view, e.g. of ``x.moved(dim, -1)``
    alike      tensors that have the dtype of another one in ``inputs``, but may have another in a call:
               ``{"weight": "x"}``. Only an implementation with ``mixed = True`` runs such a call
    fake       shapes, dtypes and strides of the outputs, from meta or fake tensors; the reference when not given
    flatten    the user's call -> (args, attributes) in the schema's terms, e.g. a PackedWeight into its tensors
    forms      a call in another form, by names, e.g. with ``dtype=`` of softmax -> the canonical call, see
               ``CanonicalCall``. It is asked where a call is not answered from memory
    packed     ``flatten`` of the usual call as data: dispatch then unpacks the argument without a Python call
    baseline   the implementation whose time over the winner's is shown as "× torch"
    transfers  static dimensions (int) along which a winner may answer for other sizes, each with the range of a size:
               ``{"cols": registry.octave}``. It answers between the sizes at which the tuner has verified it
    weights    tensor arguments that stay from call to call: an implementation may prepare only these
    independent  tensor arguments of integers or booleans, each element of which may have the value of any other: words
               of a packed weight, quantised activations, targets, but not offsets. Verification changes single elements
               of these between calls, as it does of floating tensors
    """

    name: str
    schema: str
    version: int
    reference: Callable[..., Outputs]
    problem: Callable[[Arguments], Problem | Mapping[str, Value]]
    inputs: Callable[[Problem, str, torch.Generator], tuple[Any, ...]]
    floor: Callable[[Problem], Floor]
    tolerance: Tolerance
    static: frozenset[str]
    dynamic: frozenset[str]
    kinds: tuple[str, ...] = ("normal",)
    examples: tuple[Mapping[str, Value], ...] = ()
    check: Callable[[Problem], None] | None = None
    fake: Callable[..., Outputs] | None = None
    backward: Backward | None = None
    flatten: Callable[..., tuple[tuple[Any, ...], Mapping[str, Any]]] | None = None
    packed: Packed | None = None
    forms: OtherForms | None = None
    weights: frozenset[str] = frozenset()
    baseline: str = "torch.native"
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    compare: Mapping[str, Comparator] = field(default_factory=dict)
    choices: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    added: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    distributions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    view: Callable[[Arguments], Arguments] | None = None
    alike: Mapping[str, str] = field(default_factory=dict)
    transfers: Mapping[str, Range] = field(default_factory=dict)
    check_data: Callable[[Mapping[str, Any]], None] | None = None
    independent: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise InvalidDefinitionError(
                f"op name {self.name!r}", hint="expected lower_case, or vendor::lower_case for an op of your own"
            )
        if self.parsed.name != self.name:
            raise InvalidDefinitionError(f"op {self.name!r}: its schema is named {self.parsed.name!r}")
        self._freeze_names()
        if not isinstance(self.tolerance, Tolerance):
            raise InvalidDefinitionError(f"op {self.name!r}: its tolerance is {self.tolerance!r:.80}")
        object.__setattr__(self, "static", self.static | self.choices.keys() | self.distributions.keys())
        if both := self.static & self.dynamic:
            raise InvalidDefinitionError(f"op {self.name!r}: {sorted(both)} both static and dynamic")
        if COUNT in self.static | self.dynamic:
            raise InvalidDefinitionError(
                f"op {self.name!r}: a dimension named {COUNT!r}",
                hint="a shapes file says by that name how often a problem is called; take another",
            )
        if not self.kinds:
            raise InvalidDefinitionError(f"op {self.name!r}: no input kinds")
        tensors = [parameter.name for parameter in self.parsed.parameters if parameter.holds_tensors]
        if not tensors:
            raise InvalidDefinitionError(
                f"op {self.name!r}: it takes no tensor", hint="a call runs on the device of its tensors: take one"
            )
        for told, names in (("weights", self.weights), ("independent", self.independent)):
            for name in sorted(names.difference(tensors)):
                raise InvalidDefinitionError(f"op {self.name!r}: {told}: {UnknownNameError('tensor', name, tensors)}")
        for name, values in self._named_values.items():
            check_choices(self.name, name, values)
        self._check_transfers()
        self._check_reference()
        check_fields(self)
        for name in {**self.tolerances, **self.compare}:
            if name not in self.parsed.results:
                raise InvalidDefinitionError(
                    f"op {self.name!r}: {UnknownNameError('result', name, self.parsed.results)}"
                )

    def _freeze_names(self) -> None:
        for given in ("static", "dynamic", "weights", "independent"):
            if isinstance(names := getattr(self, given), str):
                raise InvalidDefinitionError(f"op {self.name!r}: {given} is {names!r}", hint=f"expected {{{names!r}}}")
            object.__setattr__(self, given, frozenset(names))

    def _check_transfers(self) -> None:
        sizes = self.static - self._named_values.keys() - {"dtype"}
        for name, declared in self.transfers.items():
            if name not in sizes:
                raise InvalidDefinitionError(
                    f"op {self.name!r}: transfers: {name} is no static size",
                    hint=f"its static sizes are {', '.join(sorted(sizes)) or 'none'}; dynamic ones transfer anyway",
                )
            if not callable(declared):
                raise InvalidDefinitionError(
                    f"op {self.name!r}: transfers: the range of {name} is {declared!r:.80}",
                    hint=f"expected a function of a size, e.g. {{{name!r}: registry.octave}}",
                )

    def _check_reference(self) -> None:
        """Raise InvalidDefinitionError unless the reference takes the schema's arguments, as far as Python tells."""
        names = self.parsed.names
        hint = f"it takes the schema's arguments in order: ({', '.join(names)})"
        if not callable(self.reference):
            raise InvalidDefinitionError(f"op {self.name!r}: its reference is {self.reference!r:.80}", hint=hint)
        try:
            signature = inspect.signature(self.reference, follow_wrapped=False)
        except (TypeError, ValueError):  # of a function in C: its signature is not known
            return
        try:
            signature.bind(*names)
        except TypeError as fault:
            told = f"its reference, which takes {signature}, cannot be called with the schema's arguments: {fault}"
            raise self._fault(self.reference, told, hint) from None

    @cached_property
    def near_along(self) -> tuple[str, ...]:
        """The dimensions along which a winner of another problem may be near, sorted by name."""
        return tuple(sorted(self.dynamic | self.transfers.keys()))

    @cached_property
    def parsed(self) -> Schema:
        """The schema, parsed."""
        return Schema.parse(self.schema)

    @property
    def hook(self) -> str:
        """The name of the op's pluggy hook: ``vendor::name`` becomes ``vendor__name``."""
        return self.name.replace("::", "__")

    def bind(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
        """A user's call as the schema's values in order: flattened, defaults filled in, attributes coerced."""
        if self.flatten is not None:
            args, attributes = self.flattened(args, attributes)
        return self.parsed.bind(args, attributes)

    def flattened(self, args: tuple[Any, ...], attributes: Mapping[str, Any]) -> tuple[Any, Any]:
        """A user's call in the schema's terms, of an op with a ``flatten``: arguments by position and by name.

        Raises InvalidDefinitionError if ``flatten`` returns anything else.
        """
        assert self.flatten is not None
        found: Any = self.flatten(*args, **attributes)
        if not (
            isinstance(found, tuple)
            and len(found) == 2
            and isinstance(found[0], tuple | list)
            and (isinstance(found[1], dict) or isinstance(found[1], Mapping))  # noqa: SIM101  (torch.compile traces it)
        ):
            told = f"flatten() returned {type(found).__name__} {found!r:.80}"
            hint = "expected two things, the arguments by position as a tuple and those by name as a mapping"
            raise self._fault(self.flatten, told, hint)
        return found

    def results(self, outputs: Outputs, values: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        """The results of a call: its outputs, then the current values of the arguments that it mutates.

        ``outputs`` as the call returned them, ``values`` the schema's in order. ``Schema.results`` names the results.
        """
        parameters = zip(self.parsed.parameters, values, strict=True)
        return (*as_tuple(outputs), *(value for parameter, value in parameters if parameter.mutated))

    def arguments(self, values: tuple[Any, ...]) -> Arguments:
        """Bound values as specs. Raises InvalidArgumentError when the tensors are on several devices."""
        gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors_in(values))
        arguments = self.specs(values, gradient)
        devices = {name: spec.device for name, spec in arguments.tensors.items()}
        if len(set(devices.values())) > 1:
            shown = ", ".join(f"{name} on {device}" for name, device in devices.items())
            raise InvalidArgumentError(
                f"{self.name}: its tensors are on several devices: {shown}", hint="move them to one: .to(device)"
            )
        return arguments

    def specs(self, values: tuple[Any, ...], gradient: bool = False) -> Arguments:
        """Bound values as specs, where the tensors are known to be on one device."""
        return Arguments(self.name, dict(zip(self.parsed.names, map(_spec, values), strict=True)), gradient)

    @cached_property
    def fake_reads(self) -> frozenset[str]:
        """Names of the parameters that the code of ``fake`` reads; all of them without a fake."""
        names = self.parsed.names
        if not isinstance(self.fake, RowMajor):
            return frozenset(names) if self.fake is None else loaded_parameters(self.fake, names)
        return self.fake.reads(names)

    def output_specs(self, arguments: Arguments, device: torch.device) -> dict[str, TensorSpec]:
        """Name, shape, dtype and strides of the outputs, from ``fake`` run on meta tensors."""
        if isinstance(self.fake, RowMajor):
            return self.new_output_specs(arguments, device)
        # floats as text, since 0.0 equals -0.0
        told = tuple([repr(value) if isinstance(value, float) else value for value in arguments.unrecorded.values()])
        found = self._outputs.get((told, device))
        if found is None:
            found = self.new_output_specs(arguments, device)
            if len(self._outputs) >= _MOST_KEPT:
                self._outputs.clear()
            self._outputs[told, device] = found
        return dict(found)

    @cached_property
    def _outputs(self) -> dict[Hashable, dict[str, TensorSpec]]:
        """Cached results of ``output_specs``: calling ``fake`` takes longer than binding a plan."""
        return {}

    def size_rule(self, *, row_major: bool) -> Rule | None:
        """The rule of row-major outputs for calls whose tensors are all ``row_major`` or not; None if it does not hold.

        It takes a call's arguments in order, specs instead of tensors.
        """
        fake = self.fake
        return fake.rule if isinstance(fake, RowMajor) and (fake.otherwise is None or row_major) else None

    def new_output_specs(self, arguments: Arguments, device: torch.device) -> dict[str, TensorSpec]:
        """``output_specs`` without the cache, for arguments that are probably new and do not return."""
        names = self.parsed.outputs
        if not names:
            return {}
        specs = self.fake.specs(arguments.unrecorded, device) if isinstance(self.fake, RowMajor) else None
        if specs is not None:
            return dict(zip(names, specs, strict=True))
        fake = self.fake or self.reference
        # torch's compiler, once imported, makes torch's own answers for meta tensors the quicker ones
        with OnMeta() if "torch._dynamo" not in sys.modules else nullcontext():
            outputs = self._faked(fake, arguments)
        if len(outputs) != len(names) or not all(isinstance(tensor, torch.Tensor) for tensor in outputs):
            told = f"its fake returned {', '.join(type(tensor).__name__ for tensor in outputs) or None}"
            raise self._fault(fake, told, f"expected a tensor for each of its outputs: {', '.join(names) or 'none'}")
        return {
            name: quick_spec(tensor.shape, tensor.dtype, tensor.stride(), device)
            for name, tensor in zip(names, outputs, strict=True)
        }

    def _faked(self, fake: Callable[..., Outputs], arguments: Arguments) -> tuple[torch.Tensor, ...]:
        """Outputs without data. Raises InvalidDefinitionError for a ``fake`` that looks at its arguments' data."""
        try:
            return as_tuple(fake(*map(_on_meta, arguments.unrecorded.values())))
        except (RuntimeError, NotImplementedError) as fault:
            if "meta tensor" not in str(fault):
                raise
            which = "fake" if self.fake is not None else "reference, which stands for a fake that it lacks,"
            told = f"its {which} looks at the data of tensors: {str(fault).splitlines()[0]}"
            hint = "give it a fake that returns empty tensors by shapes and attributes alone: x.new_empty(...)"
            raise self._fault(fake, told, hint) from fault

    def result_specs(self, arguments: Arguments, device: torch.device) -> list[TensorSpec]:
        """Specs of ``results``: the outputs' on ``device``, then the mutated arguments', on the device they have."""
        mutated = [parameter.name for parameter in self.parsed.parameters if parameter.mutated]
        return [*self.output_specs(arguments, device).values(), *(arguments.tensors[name] for name in mutated)]

    @property
    def _named_values(self) -> dict[str, tuple[Value, ...]]:
        return {**self.choices, **self.distributions}

    def tolerance_of(self, result: str) -> Tolerance:
        """The tolerance for the result of that name."""
        return self.tolerances.get(result, self.tolerance)

    def draw(self, problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
        """``inputs`` as the values of a bound call: the schema's in order, coerced."""
        return self.parsed.coerced(self.inputs(problem, kind, generator))

    def pose(self, arguments: Arguments, like: Problem | None = None) -> Problem:
        """The problem that a call's arguments pose, with its traits. ``like`` gives the distributions of its data."""
        given = self._dims_of(arguments)
        self._check_dims(given)
        dims = dict(given)
        for name, texts in self.distributions.items():
            dims[name] = texts[0] if like is None else like.dims[name]
        self._check_choices(dims)
        return Problem(self.name, dims, self._traits(arguments, self.told(arguments)))

    def posing_in_family(
        self, traits: type[FamilyTraits], told: Mapping[str, Any] | None
    ) -> Callable[[Arguments], Problem]:
        """``pose`` for calls that differ from a checked one in their numbers alone, with look-ups done beforehand.

        ``told`` is the result of ``Op.told`` for any call of the family.
        """
        op, problem, view, distributions = self.name, self.problem, self.view, self.distributions
        usual = {name: texts[0] for name, texts in distributions.items()}
        check_choices = self._check_choices if self.choices else None
        made = Problem.of_call if "misaligned" not in self.static | self.dynamic else Problem

        def pose(arguments: Arguments) -> Problem:
            posed = problem(arguments)
            dims = {**(posed if type(posed) is dict else posed.dims if isinstance(posed, Problem) else posed)}
            if usual:
                dims.update(usual)
            if check_choices is not None:
                check_choices(dims)
            if view is None or view(arguments) is arguments:
                return made(op, dims, traits(arguments, told))
            return made(op, dims, self._traits(arguments, told))

        return pose

    def told(self, arguments: Arguments) -> Mapping[str, Any] | None:
        """Traits of a call that the op finds: ``mixed`` if tensors of ``alike`` differ in dtype, and its ``added``.

        None where there are none of these.
        """
        mixed = {"mixed": True} if self.alike and self._is_mixed(arguments) else None
        return {**(mixed or {}), "added": self.added} if self.added else mixed

    def _dims_of(self, arguments: Arguments) -> Any:
        posed: Any = self.problem(arguments)
        return posed.dims if isinstance(posed, Problem) else posed

    def _check_choices(self, dims: Mapping[str, Value]) -> None:
        for name, values in self.choices.items():
            check_choice(self.name, name, dims.get(name), values)

    def _traits(self, arguments: Arguments, told: Mapping[str, Any] | None) -> Traits:
        return Traits(arguments if self.view is None else partial(self._viewed, arguments), told)

    def _viewed(self, arguments: Arguments) -> Arguments:
        assert self.view is not None
        found: Any = self.view(arguments)
        if not isinstance(found, Arguments):
            hint = "expected registry.Arguments: those that it was given, or e.g. arguments.mapped(...)"
            raise self._fault(self.view, f"view() returned {found!r:.80}", hint)
        return found

    def _check_dims(self, dims: Any) -> None:
        """Raise InvalidDefinitionError unless the result of ``problem`` has exactly the op's dimensions."""
        if not isinstance(dims, Mapping):
            raise self._fault(self.problem, f"problem() returned {dims!r:.80}", "expected a value for each dimension")
        if {*self.static, *self.dynamic} != {*dims, *self.distributions}:
            wanted = ", ".join(sorted((self.static | self.dynamic) - self.distributions.keys()))
            raise self._fault(self.problem, f"problem() gives {', '.join(dims)}", f"its dimensions are {wanted}")
        for name, value in dims.items():
            if not isinstance(value, int | float | str):
                told = f"problem() gives {name} as {value!r:.80}, a {type(value).__name__}"
                raise self._fault(self.problem, told, "expected an int, float, str or bool, such as a dtype's name")

    def _fault(self, function: object, told: str, hint: str) -> InvalidDefinitionError:
        return InvalidDefinitionError(f"op {self.name!r}: {told}{at(function)}", hint=hint)

    def _is_mixed(self, arguments: Arguments) -> bool:
        pairs = ((arguments[name], arguments[other]) for name, other in self.alike.items())
        return any(
            one.dtype != other.dtype
            for one, other in pairs
            if isinstance(one, TensorSpec) and isinstance(other, TensorSpec)
        )

    def problem_of(self, dims: Mapping[str, Value]) -> Problem:
        """The problem with these dimensions, e.g. of a shapes file, with the traits of a call with its inputs.

        Raises UnknownNameError for an unknown dimension, InvalidArgumentError for a missing or impossible one.
        """
        key = canonical_json(dict(dims))
        found = self._problems.get(key)
        if found is None:
            found = posed_by_inputs(self, self.named(dims))
            if len(self._problems) >= _MOST_KEPT:
                self._problems.clear()
            self._problems[key] = found
        return found

    @cached_property
    def _problems(self) -> dict[str, Problem]:
        """Cached results of ``problem_of`` by canonical dimensions: a worker asks again for every trial."""
        return {}

    def named(self, dims: Mapping[str, Value]) -> Problem:
        """A problem without arguments, each dimension checked; a missing distribution is the first of its names."""
        known = self.static | self.dynamic
        for name in dims:
            if name not in known:
                raise UnknownNameError(f"dimension of {self.name}", name, known)
        given = {**dims, **{name: values[0] for name, values in self.distributions.items() if name not in dims}}
        if missing := sorted(known - given.keys()):
            raise InvalidArgumentError(
                f"{self.name}: dimensions missing: {', '.join(missing)}",
                hint=f"{self.name} has the dimensions {', '.join(sorted(known))}",
            )
        for name in self.dynamic:
            check_positive(self.name, name, given[name])
        for name, values in self._named_values.items():
            check_choice(self.name, name, given[name], values)
        if "dtype" in known:
            torch_dtype(str(given["dtype"]))
        problem = Problem(self.name, given)
        if self.check is not None:
            self.check(problem)
        return problem


def _spec(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return TensorSpec.of(value)
    return tuple(map(_spec, value)) if isinstance(value, list | tuple) else value


def _on_meta(value: Any) -> Any:
    if isinstance(value, TensorSpec):
        return torch.empty_strided(value.shape, value.strides, dtype=value.dtype, device=META)
    return tuple(map(_on_meta, value)) if isinstance(value, tuple) else value
