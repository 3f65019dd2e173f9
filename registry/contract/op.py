"""The contract of one operation: its semantics, the problem that a call poses, and the tolerance of a result."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from ..arguments.inputs import posed_by_inputs
from ..arguments.loaded_parameters import loaded_parameters
from ..arguments.schema import Schema, tensors_in
from ..arguments.traits import FamilyTraits
from ..errors import InvalidArgumentError, InvalidDefinitionError
from ..problem import Arguments, Problem, TensorSpec, Value, canonical_json
from .canonical import OtherForms
from .definition_checks import check_definition, check_name, check_tolerance, definition_fault
from .fake import RowMajor, Rule
from .function_answers import drawn_values
from .gradient import Backward
from .named_problems import named_problem
from .outputs import Outputs, as_tuple, faked_specs
from .packed_call import Packed
from .posing import family_poser, posed, told_traits
from .tolerance import Comparator, Floor, Tolerance
from .transfer import Range

_MOST_KEPT = 1024


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
    numbers    float attributes that any tensors may come with, such as an epsilon, but not one that a tensor was made
               with, and integer ones that name an element of an integer tensor, such as the target that is ignored:
               verification tries others than ``inputs`` gives
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
    numbers: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check_name(self)
        self._freeze_names()
        check_tolerance(self)
        object.__setattr__(self, "static", self.static | self.choices.keys() | self.distributions.keys())
        check_definition(self)

    def _freeze_names(self) -> None:
        for given in ("static", "dynamic", "weights", "independent", "numbers"):
            if isinstance(names := getattr(self, given), str):
                raise InvalidDefinitionError(f"op {self.name!r}: {given} is {names!r}", hint=f"expected {{{names!r}}}")
            object.__setattr__(self, given, frozenset(names))

    @cached_property
    def near_along(self) -> tuple[str, ...]:
        """The dimensions along which a winner of another problem may be near, sorted by name."""
        return tuple(sorted(self.dynamic | self.transfers.keys()))

    @cached_property
    def integers(self) -> frozenset[str]:
        """The dynamic dimensions that are an ``int`` argument of that name: any integer; the others are sizes."""
        return self.dynamic & {parameter.name for parameter in self.parsed.parameters if parameter.kind == "int"}

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
            raise definition_fault(self, told, hint, self.flatten)
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
        return faked_specs(self, arguments, device)

    def result_specs(self, arguments: Arguments, device: torch.device) -> list[TensorSpec]:
        """Specs of ``results``: the outputs' on ``device``, then the mutated arguments', on the device they have."""
        mutated = [parameter.name for parameter in self.parsed.parameters if parameter.mutated]
        return [*self.output_specs(arguments, device).values(), *(arguments.tensors[name] for name in mutated)]

    @property
    def named_values(self) -> dict[str, tuple[Value, ...]]:
        """The values that each dimension of ``choices`` and ``distributions`` may have."""
        return {**self.choices, **self.distributions}

    def tolerance_of(self, result: str) -> Tolerance:
        """The tolerance for the result of that name."""
        return self.tolerances.get(result, self.tolerance)

    def draw(self, problem: Problem, kind: str, generator: torch.Generator) -> tuple[Any, ...]:
        """``inputs`` as the values of a bound call: the schema's in order, coerced."""
        return drawn_values(self, self.inputs(problem, kind, generator))

    def pose(self, arguments: Arguments, like: Problem | None = None) -> Problem:
        """The problem that a call's arguments pose, with its traits. ``like`` gives the distributions of its data.

        Raises InvalidDefinitionError unless ``problem`` gives exactly the op's dimensions.
        """
        return posed(self, arguments, like)

    def posing_in_family(
        self, traits: type[FamilyTraits], told: Mapping[str, Any] | None
    ) -> Callable[[Arguments], Problem]:
        """``pose`` for calls that differ from a checked one in their numbers alone, with look-ups done beforehand.

        ``told`` is the result of ``Op.told`` for any call of the family.
        """
        return family_poser(self, traits, told)

    def told(self, arguments: Arguments) -> Mapping[str, Any] | None:
        """Traits of a call that the op finds: ``mixed`` if tensors of ``alike`` differ in dtype, and its ``added``.

        None where there are none of these.
        """
        return told_traits(self, arguments)

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
        return named_problem(self, dims)


def _spec(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return TensorSpec.of(value)
    return tuple(map(_spec, value)) if isinstance(value, list | tuple) else value
