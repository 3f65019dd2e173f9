"""The studies of a run can be kept in a storage of Optuna's, where others read them while it goes on."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from registry.errors import InvalidArgumentError
from registry.tuner.limits import Budget
from registry.tuner.search.findings import Finding
from registry.tuner.search.state import SearchState
from registry.tuner.search.studies import Studies, open_storage

from .test_state import PROBLEM, a_search, time_of


@pytest.mark.parametrize("place", ["journal.log", "sqlite:///studies.db"])
@pytest.mark.few(1)
def test_a_search_is_read_from_its_storage_while_it_goes_on(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = a_search(Budget()).plan
    search = SearchState(plan, Budget(), (), 0, None, Studies(storage=open_storage(place), run="cafe"))
    first, *_ = search.ask(3)
    search.learn(Finding(first.candidate, "ok", time_of(first.candidate.config), False, "uid"))
    study = optuna.load_study(study_name=f"{PROBLEM}, run cafe", storage=open_storage(place))
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE, *[TrialState.RUNNING] * 2]
    assert study.best_trial.user_attrs == {"status": "ok", "uid": "uid"}
    assert study.best_params["acme.bowl.a"] == first.candidate.config["a"]


def test_without_a_place_studies_stay_in_memory_and_say_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    verbosity = optuna.logging.get_verbosity()
    assert open_storage("") is None
    a_search(Budget()).ask(1)
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == verbosity


@pytest.mark.parametrize("place", ["nosuch://place", "sqlite:////absent/folder/x.db", "/absent/folder/journal.log"])
def test_a_place_that_cannot_be_used_is_told(place: str) -> None:
    with pytest.raises(InvalidArgumentError, match="storage") as caught:
        open_storage(place)
    assert "sqlite:///studies.db" in caught.value.hint
