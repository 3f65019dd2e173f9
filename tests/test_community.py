"""What surrounds the code: versions that agree, release notes, issue forms, links of the files at the root."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import registry

ROOT = Path(__file__).parents[1]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
SCRIPT = ROOT / "docs" / "release_notes.py"


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert registry.__version__ == project["version"] == citation["version"] == newest[1]
    assert project["license"] == citation["license"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    spec = importlib.util.spec_from_file_location("release_notes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    newer, older = "## 0.2.0 (unreleased)\n\n- New.", "## 0.1.0 (2026-12-01)\n\n- First,\n  and more.\n- Second.\n"
    text = f"# Changelog\n\n{newer}\n\n{older}"
    assert module.notes(text, "0.1.0") == "- First,\n  and more.\n- Second.\n"
    for version, fault in (("0.2.0", "dated 'unreleased'"), ("0.3", "no section '0.3'; it has 0.2.0, 0.1.0")):
        with pytest.raises(ValueError, match=re.escape(fault)):
            module.notes(text, version)


def test_a_version_without_a_section_has_no_notes() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "99.0"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "CHANGELOG.md has no section '99.0'" in done.stderr


@pytest.mark.parametrize("path", [path for path in FORMS if path.name != "config.yml"], ids=lambda path: path.stem)
def test_an_issue_form_asks_for_what_a_report_needs(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= form.keys()
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))
    assert any(field.get("validations", {}).get("required") for field in form["body"])
    for field in form["body"]:
        assert field["type"] in {"textarea", "input", "dropdown", "checkboxes", "markdown"}
        assert field["attributes"]["label"]


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "README.md"])
def test_links_at_the_root_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
