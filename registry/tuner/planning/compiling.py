"""Compiles the variants of planned problems for a report: nothing is loaded or run, and no GPU is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...artifact import Variant
from ...backends.estimate import occupancy
from ...backends.launch_checks import launches_of, refuse_empty
from ...device import Device
from ...dispatch.plans.plan import Candidate, Draft
from ...errors import RegistryError
from ...implementation import Implementation
from ...problem import Problem
from ...space import Config
from .problems import ImplementationPlan, ProblemPlan


@dataclass(frozen=True)
class CompiledVariant:
    """One variant of an implementation for one target, with the problems and the first configuration that need it.

    ``resources`` are the compiler's (registers, spill_bytes, shared_bytes, threads; empty for C++), ``fault`` is why it
    does not compile, "" when it does.
    """

    op: str
    implementation: str
    kernel: str
    architecture: str
    config: Config
    problems: tuple[Problem, ...]
    resources: Mapping[str, int] = field(default_factory=dict)
    occupancy: float | None = None
    fault: str = ""


@dataclass(frozen=True)
class NotCompiled:
    """An implementation that compiles nothing for a problem on a target, and the reason."""

    op: str
    implementation: str
    architecture: str
    problem: Problem
    reason: str


@dataclass
class CompileReport:
    """The compiled variants in the order of the plans, and the implementations for which nothing was compiled."""

    variants: list[CompiledVariant] = field(default_factory=list)
    omitted: list[NotCompiled] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if every variant compiles."""
        return not any(variant.fault for variant in self.variants)


@dataclass
class _Wanted:
    """A variant, and the problems that need it; ``fault`` instead of a variant where the launch itself is wrong."""

    implementation: Implementation
    device: Device
    config: Config
    variant: Variant | None
    fault: str = ""
    problems: list[Problem] = field(default_factory=list)


def compile_plans(
    plans: Iterable[ProblemPlan], takes: Callable[[Implementation, Device], bool], *, every_config: bool
) -> CompileReport:
    """Compile each variant that the implementations accepted by ``takes`` need for these plans, once.

    With ``every_config`` for every configuration of an implementation, else for its default one.
    """
    report, wanted = CompileReport(), dict[tuple[str, ...], _Wanted]()
    for plan in plans:
        for choice in plan.choices:
            if takes(choice.implementation, plan.device):
                _collect(report, wanted, plan, choice, every_config=every_config)
    report.variants += [_compiled(each) for each in wanted.values()]
    return report


def _collect(
    report: CompileReport,
    wanted: dict[tuple[str, ...], _Wanted],
    plan: ProblemPlan,
    choice: ImplementationPlan,
    *,
    every_config: bool,
) -> None:
    implementation, device = choice.implementation, plan.device

    def omit(reason: str) -> None:
        architecture = _shown_target(device)
        report.omitted.append(NotCompiled(plan.op.name, implementation.name, architecture, plan.problem, reason))

    if choice.unsupported:
        omit("; ".join(choice.unsupported))
        return
    for config in choice.configs if every_config else [choice.default or {}]:
        found, fault = _variants(plan, Candidate(implementation, config))
        if not found and not fault:
            omit("it has nothing to compile before it runs")
            return
        for variant in found or (None,):
            key = (plan.op.name, implementation.name, device.architecture, variant.key if variant else fault)
            asked = wanted.setdefault(key, _Wanted(implementation, device, config, variant, fault))
            if plan.problem not in asked.problems:
                asked.problems.append(plan.problem)


def _variants(plan: ProblemPlan, candidate: Candidate) -> tuple[Sequence[Variant], str]:
    implementation = candidate.implementation
    try:
        draft = Draft.of(plan.op, candidate, plan.problem, plan.arguments, plan.device)
        found = draft.variants()
        if launch := getattr(implementation, "launch", None):  # functional code launches nothing
            given = launch(plan.problem, candidate.config, plan.device)
            refuse_empty(launches_of(implementation, given), draft.signature)
    except Exception as fault:  # a stranger's code: a fault in it is a line of the report
        return (), _told(fault)
    return (found if implementation.compiles_anywhere else ()), ""


def with_launches_checked(plan: ProblemPlan) -> ProblemPlan:
    """The plan without implementations whose default gives its kernel a launch that is wrong, which is their fault."""
    return plan.with_choices(tuple(_launching(plan, choice) for choice in plan.choices))


def _launching(plan: ProblemPlan, choice: ImplementationPlan) -> ImplementationPlan:
    if choice.default is None:
        return choice
    _, fault = _variants(plan, Candidate(choice.implementation, choice.default))
    return replace(choice, space=None, default=None, unsupported=(fault,), faulty=True) if fault else choice


def _compiled(wanted: _Wanted) -> CompiledVariant:
    implementation, variant, device = wanted.implementation, wanted.variant, wanted.device
    resources: Mapping[str, int] = {}
    fault = wanted.fault
    if variant is not None:
        try:
            resources = implementation.compile(variant, device.target).resources
        except Exception as raised:  # compilers raise whatever their passes do
            fault = _told(raised)
    return CompiledVariant(
        implementation.op,
        implementation.name,
        variant.kernel.rpartition(":")[2] if variant else "",
        _shown_target(device),
        wanted.config,
        tuple(wanted.problems),
        dict(resources),
        occupancy(resources, device.architecture),
        fault,
    )


def _shown_target(device: Device) -> str:
    return "this host" if device.type == "cpu" else device.architecture


def _told(fault: Exception) -> str:
    if isinstance(fault, RegistryError):
        return f"{fault.message}{fault.hint and f' ({fault.hint})'}"
    return f"{type(fault).__name__}: {fault}"
