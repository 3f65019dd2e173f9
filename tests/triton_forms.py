"""The Triton plugin's implementations of each op of the box, in the order of its hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import registry_triton
from registry.contracts import BOX
from registry.implementation import Implementation

OPS = {op.name: op for op in BOX}
FORMS: Mapping[str, Sequence[Implementation]] = {
    name.removesuffix("_implementations"): hook()
    for name, hook in list(vars(registry_triton).items())
    if name.endswith("_implementations")
}
EACH = [(op, place) for op, forms in FORMS.items() for place in range(len(forms))]
