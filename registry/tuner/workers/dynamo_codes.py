"""Code that torch.compile makes of a function after a graph break, by torch's private table of it."""

from __future__ import annotations

import sys
from types import CodeType


def is_made_by_dynamo(code: CodeType) -> bool:
    """Whether a function with this code stands in its module because torch.compile put it there.

    False where this torch has no such table, as before anything was compiled.
    """
    module = sys.modules.get("torch._dynamo.resume_execution")
    cache = getattr(module, "ContinueExecutionCache", None)
    return code in getattr(cache, "generated_code_metadata", ())
