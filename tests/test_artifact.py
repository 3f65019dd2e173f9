"""Keys of variants: the hash of all their fields, whose text is written once however many variants have it."""

from __future__ import annotations

import hashlib

import pytest

from registry import artifact
from registry.artifact import Variant
from registry.problem import canonical_json


@pytest.mark.parametrize("source", ["", '\\ "quoted"\n\té — \u2028 \U0001f600', "]", "x" * 100_000])
@pytest.mark.parametrize("spec", [{}, {"b": [1, True, 1.0, None], "a": {"]": '"'}}])
def test_a_key_is_the_hash_of_all_fields_as_canonical_json(source: str, spec: dict[str, object]) -> None:
    fields = ["cuda", "rows]", spec, source]
    expected = hashlib.sha256(canonical_json(fields).encode()).hexdigest()
    assert Variant("cuda", "rows]", spec, source).key == expected


def test_variants_of_one_text_have_it_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []

    def counted(value: object) -> str:
        written.append(value)
        return canonical_json(value)

    monkeypatch.setattr(artifact, "canonical_json", counted)
    source = "a text that no other test has"
    keys = {Variant("cuda", "rows", {"rows": rows}, source).key for rows in range(5)}
    assert len(keys) == 5
    assert written.count(source) == 1
    assert not any(isinstance(value, list) and source in value for value in written)
