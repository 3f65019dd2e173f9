"""A candidate's plan on the twin of a large problem."""

from __future__ import annotations

from collections.abc import Mapping

from ...artifact import Artifact
from ...dispatch.plans.plan import Candidate, Plan, build
from ...errors import RegistryError
from ..planning.variants import variants_at
from .session import Session


def plan_on_twin(candidate: Candidate, twin: Session, artifacts: Mapping[str, Artifact]) -> Plan | None:
    """The candidate bound to the twin's problem, from artifacts by variant key.

    None where the candidate does not support the twin, or needs a variant that is not among the artifacts.
    """
    try:
        wanted = variants_at(twin.op, candidate, twin.problem, twin.arguments, twin.device)
        if wanted is None or any(variant.key not in artifacts for variant in wanted):
            return None
        return build(twin.op, candidate, twin.problem, twin.arguments, twin.device, artifacts)
    except RegistryError:
        return None
