"""Paths that users write, and users without a home folder, as of a container: one plain error, never pathlib's."""

from __future__ import annotations

import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from registry.discovery.catalog import Catalog
from registry.dispatch.recording import recording_file
from registry.dispatch.recording.misses import misses_file
from registry.errors import CacheError, PluginError, RegistryError
from registry.paths import cache_folder, expanded, resolved
from registry.releases.pinning import release_named
from registry.tuner.models.names import config_of
from tuning_db import MissingDatabaseError
from tuning_db.database.location import default_path, locate

NOBODYS = "~nobody-of-this-name/file"


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user that the system does not know, without HOME."""

    def unknown(number: int) -> None:
        raise KeyError(number)

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "KERNEL_REGISTRY_CACHE", "KERNEL_REGISTRY_DB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_without_a_home_folder_the_variable_that_names_another_is_told(homeless: None) -> None:
    with pytest.raises(CacheError, match=r"this user has no home folder\n.*KERNEL_REGISTRY_CACHE"):
        cache_folder()
    with pytest.raises(MissingDatabaseError, match=r"this user has no home folder\n.*KERNEL_REGISTRY_DB"):
        default_path()
    with pytest.raises(RegistryError, match=r"this user has no home folder\n.*KERNEL_REGISTRY_MISSES"):
        misses_file({"KERNEL_REGISTRY_MISSES": "1"})


def test_without_a_home_folder_places_that_are_named_serve(
    homeless: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(tmp_path / "cache"))
    assert cache_folder("part") == tmp_path / "cache" / "part"
    assert locate(tmp_path / "tuning.db").path == tmp_path / "tuning.db"


@pytest.mark.parametrize(
    ("use", "fault"),
    [
        (lambda: Catalog().load_file(NOBODYS + ".py"), PluginError),
        (lambda: recording_file.checked(NOBODYS), RegistryError),
        (lambda: release_named(NOBODYS, None), RegistryError),
        (lambda: config_of(NOBODYS), RegistryError),
    ],
    ids=["plugin", "recording", "release", "model"],
)
def test_the_home_of_nobody_is_a_path_that_is_not_there(use: Callable[[], object], fault: type[Exception]) -> None:
    with pytest.raises(fault):
        use()
    assert locate(NOBODYS).path == Path.cwd() / NOBODYS
    assert misses_file({"KERNEL_REGISTRY_MISSES": NOBODYS}) == expanded(NOBODYS) == Path(NOBODYS)


def test_links_in_a_circle_are_told_when_they_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    circle = tmp_path / "circle.py"
    circle.symlink_to(circle)
    assert resolved(circle) == circle
    monkeypatch.setenv("KERNEL_REGISTRY_CACHE", str(circle))
    with pytest.raises(CacheError, match="cannot be made"):
        cache_folder()
    with pytest.raises(PluginError):
        Catalog().load_file(circle)
