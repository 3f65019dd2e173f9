"""torch.compile of plain torch: where a tuned kernel has beaten torch's own and Inductor's, it takes their place.

    from registry.integrations import torch_compile

    torch_compile.enable()             # for everything that torch.compile compiles from now on
    compiled = torch.compile(model)
    compiled(x)
    print(torch_compile.report())      # what was replaced, what was left, and why
    torch_compile.disable()

Functions are recognised in the graphs that Dynamo captures: softmax, rms_norm (also written out, as in models of
transformers), layer_norm, linear and scaled_dot_product_attention. Evidence is in the database of winners: see
``evidence.reason_to_leave``. Programs that were compiled before stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...api_checks import names_of
from ...errors import InvalidArgumentError, did_you_mean
from . import replacing
from .patterns import OPS
from .replacing import Replacements

__all__ = ["Replacements", "disable", "enable", "report"]


def enable(ops: Iterable[str] = OPS, *, training: bool = False) -> None:
    """Replace calls of these ops from the next compilation on. Another call of ``enable`` changes the settings.

    ``training``: also in graphs that need gradients, whose backward ops dispatch then chooses, by winners or defaults.
    Raises InvalidArgumentError for anything but one or more ops among ``patterns.OPS``, and True or False.
    """
    if not isinstance(training, bool):
        raise InvalidArgumentError(f"torch_compile.enable: training={training!r}, expected True or False")
    wanted = names_of("torch_compile.enable", "ops", ops)
    for name in wanted:
        if name not in OPS:
            near = did_you_mean(name, OPS)
            raise InvalidArgumentError(
                f"torch_compile.enable: {name!r} is not recognised",
                hint=f"{near}{near and ' '}expected some of {', '.join(OPS)}",
            )
    if not wanted:
        raise InvalidArgumentError(
            "torch_compile.enable: no ops", hint=f"expected some of {', '.join(OPS)}; disable() replaces nothing"
        )
    replacing.install(frozenset(wanted), training)


def disable() -> None:
    """Replace nothing from the next compilation on."""
    replacing.uninstall()


def report() -> Replacements:
    """What was replaced since ``enable`` was first called, what was left and why, and what came from torch's caches."""
    return replacing.replacements()
