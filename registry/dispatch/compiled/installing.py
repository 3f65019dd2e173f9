"""Adds the pass over compiled graphs to Inductor, when torch first traces a call of an op for torch.compile."""

from __future__ import annotations

import logging
import sys

from ...contract import Op

_LOG = logging.getLogger(__name__)


def saw(op: Op) -> None:
    """Let Inductor apply the pass to graphs with calls of ``op``, which torch is tracing.

    Nothing happens outside of torch.compile, or if this torch lacks Inductor: the op's calls then stay opaque.
    """
    if "torch._dynamo" not in sys.modules:
        return
    try:
        from .graph_pass import PASS
        from .inductor_private import add_pass
    except (ImportError, AttributeError) as fault:
        _LOG.debug("compiled calls stay opaque: %s", fault)
        return
    PASS.saw(op)
    add_pass(PASS)
