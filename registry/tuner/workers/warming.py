"""What a run's children would each spend their first second on: done once, in the process they are forked from.

Entries are ``module`` or ``module:function``; see ``spawning.warm``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from ...backends.inductor import artifact as inductor_artifact
from ...backends.inductor.implementation import InductorImplementation
from ..planning.problems import ProblemPlan

_TRITON = "registry.backends.triton"
FOR_INDUCTOR = (*inductor_artifact.MODULES, "registry.backends.inductor.warm:warm")
FOR_TRITON = (f"{_TRITON}:build_utilities",)


def wanted_by(plans: Iterable[ProblemPlan]) -> tuple[str, ...]:
    """What the plans' implementations need; nothing that none of them does."""
    used = {type(choice.implementation) for plan in plans for choice in plan.supported}
    wanted: tuple[str, ...] = ()
    if _TRITON in sys.modules and any(issubclass(one, sys.modules[_TRITON].TritonImplementation) for one in used):
        wanted += FOR_TRITON
    if any(issubclass(one, InductorImplementation) for one in used):
        wanted += FOR_INDUCTOR
    return wanted
