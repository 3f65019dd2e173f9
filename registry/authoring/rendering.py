"""Renders the templates of files that authors begin with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

_TEMPLATES = Path(__file__).parent / "templates"


def rendered(template: str, known: Mapping[str, Any]) -> str:
    """The text of a template, a path in ``templates`` without ``.jinja``, with the values that it names."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), undefined=jinja2.StrictUndefined, keep_trailing_newline=True,
        trim_blocks=True, lstrip_blocks=True, autoescape=False,
    )  # fmt: skip
    return environment.get_template(f"{template}.jinja").render(known)
