"""Versions of a fleet: each difference is named, and a plugin's source counts as much as its version."""

from __future__ import annotations

from pathlib import Path

from registry.fleet.versions import differences, versions_of

from .conftest import PLUGIN, with_plugin


def test_equal_nodes_differ_in_nothing() -> None:
    required = versions_of(with_plugin(), ["square"])
    assert {"torch", "triton", "kernel-registry", "op square", "plugin torch", "plugin repeated.py"} <= required.keys()
    assert differences(required, with_plugin()) == []
    assert differences({}, with_plugin()) == []


def test_every_difference_is_named(tmp_path: Path) -> None:
    required = versions_of(with_plugin(), ["square"])
    other = tmp_path / "repeated.py"
    other.write_text(PLUGIN.read_text().replace("range(1, 25)", "range(1, 20)"))
    told = differences({**required, "torch": "1.13.0", "plugin acme": "acme 2.0, source 0"}, with_plugin(other))
    assert len(told) == 3
    assert told[0] == "plugin acme acme 2.0, source 0 is required and not installed here"
    assert told[1].startswith("plugin repeated.py is file, source ")
    assert told[2].startswith("torch is ")
    assert told[2].endswith("the fleet works with 1.13.0")
    del required["plugin repeated.py"]
    (extra,) = differences(required, with_plugin())
    assert extra.startswith("plugin repeated.py file, source ")
    assert extra.endswith("is installed here, and the fleet works without it")


def test_a_comment_is_no_difference(tmp_path: Path) -> None:
    other = tmp_path / "repeated.py"
    other.write_text(PLUGIN.read_text() + "\n# a remark\n")
    assert differences(versions_of(with_plugin(), ["square"]), with_plugin(other)) == []
