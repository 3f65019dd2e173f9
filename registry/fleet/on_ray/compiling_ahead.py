"""Which variants of a problem are compiled before a worker asks for them, and compiling one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...artifact import Variant
from ...backends.inductor import InductorImplementation
from ...device import Device
from ...discovery.catalog import Catalog
from ...dispatch.plans.plan import Candidate, Draft
from ...implementation import Implementation
from ...problem import Problem
from ...tuner.limits import DEFAULT_TRIALS
from ...tuner.planning.problems import plan
from .artifact_files import files_of
from .described_device import DescribedDevice


@dataclass(frozen=True)
class AheadVariant:
    """A variant with the implementation that compiles it."""

    implementation: Implementation
    variant: Variant

    @property
    def by_inductor(self) -> bool:
        """True if torch.compile makes the variant: for a model of device, in a process of its own."""
        return isinstance(self.implementation, InductorImplementation)


def variants_ahead(
    problem: Problem, catalog: Catalog, device: Device, implementations: Sequence[str]
) -> Iterator[AheadVariant]:
    """The variants that the search of a problem on a device surely needs: the defaults', then those of small spaces.

    A space of at most as many configurations as a search has trials is exhausted.
    """
    (planned,) = plan([problem], catalog, device, implementations)
    choices = [choice for choice in planned.supported if _compiles_ahead(choice.implementation)]
    defaults = [(choice, [choice.default]) for choice in choices if choice.default is not None]
    small = [(choice, list(choice.configs)) for choice in choices if len(choice.configs) <= DEFAULT_TRIALS]
    seen: set[str] = set()
    for choice, configs in (*defaults, *small):
        for config in configs:
            try:
                candidate = Candidate(choice.implementation, config)
                found = Draft.of(planned.op, candidate, problem, planned.arguments, device).variants()
            except Exception:  # a stranger's code: its fault is told by the trial that meets it
                continue
            for variant in found:
                if variant.key not in seen:
                    seen.add(variant.key)
                    yield AheadVariant(choice.implementation, variant)


def compile_ahead(ahead: AheadVariant, device: Device) -> dict[str, bytes]:
    """Compile a variant; returns the files of its artifact, none for one that does not compile."""
    try:
        return files_of(ahead.implementation.compile(ahead.variant, device.target))
    except Exception:  # compilers raise whatever their passes do; the trial that needs the variant tells the reason
        return {}


def key_of(ahead: AheadVariant, described: DescribedDevice) -> str:
    """Key under which actors agree who compiles a variant: that of the variant, for the architecture or the model."""
    architecture, model = described.groups
    return f"{ahead.variant.key} {described.device.target.backend} {model if ahead.by_inductor else architecture}"


def _compiles_ahead(implementation: Implementation) -> bool:
    return implementation.compiles_anywhere or isinstance(implementation, InductorImplementation)
