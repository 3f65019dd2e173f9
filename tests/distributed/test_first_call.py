"""KERNEL_REGISTRY_AGREE=1: the first call of a rank that runs other winners than the first rank is an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import registry
from registry import distributed
from registry.distributed import first_call
from registry.distributed.default_store import default_store
from registry.errors import InvalidArgumentError, ReleaseError
from registry.releases.pinning import RELEASE_VARIABLE
from tuning_db import Store

from ..tuning_db.conftest import Make, make

__all__ = ["make"]

PROGRAM = """
import os, sys
import torch, torch.distributed as dist
rank, folder, own = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ["KERNEL_REGISTRY_RELEASE"] = own
import registry
from registry.errors import ReleaseError

def told(cols):
    try:
        registry.call("softmax", torch.zeros(2, cols))
    except ReleaseError as fault:
        return fault.message
    return "right"

print("told", told(3))  # before the ranks have met
dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
for turn in range(2):
    dist.barrier()
    if turn == rank:
        print("told", told(4))
        print("told", told(5))
        print("told", registry.api.dispatcher.check_once is None)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("other", ["one", "two"])
def test_the_first_call_of_a_rank_that_differs_is_refused(tmp_path: Path, make: Make, other: str) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        run = store.start_run(make.environment)
        store.publish(run, make.decision())
        one = store.create_release("one")
        store.publish(run, make.decision(make.problem(rows=1)))
        two = store.create_release("two")
    environment = {
        **os.environ, first_call.VARIABLE: "1",
        "KERNEL_REGISTRY_DB": str(tmp_path / "tuning.db"), "KERNEL_REGISTRY_CACHE": str(tmp_path / "cache"),
    }  # fmt: skip
    environment.pop(RELEASE_VARIABLE, None)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(tmp_path), own],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank, own in enumerate(["one", other])
    ]  # fmt: skip
    told = []
    for rank in ranks:
        out, err = rank.communicate(timeout=300)
        assert rank.returncode == 0, err
        told.append([line.removeprefix("told ") for line in out.splitlines() if line.startswith("told ")])
    assert told[0] == ["right", "right", "right", "True"]
    if other == "one":
        assert told[1] == told[0]
        return
    before, first, again, over = told[1]
    assert (before, over) == ("right", "False")
    assert "rank 1 does not run the winners of rank 0" in first
    assert f"release: {two.id[:20]} here, {one.id[:20]} on rank 0" in first
    assert again == first


def test_a_rank_is_compared_with_the_first_once_they_have_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_DB", str(tmp_path / "tuning.db"))
    dispatcher = registry.api.dispatcher
    monkeypatch.setattr(dispatcher, "check_once", first_call.compared)
    registry.call("softmax", torch.zeros(2, 3))
    assert dispatcher.check_once is first_call.compared, "it is too early"
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        default = default_store()
        assert default is not None
        default.set(first_call._KEY, json.dumps({**distributed.identity(), "rank": "7", "mode": "strict"}))
        told = "rank 0 does not run the winners of rank 7: mode: tuned here, strict on rank 7"
        for cols in (4, 5):
            with pytest.raises(ReleaseError, match=told):
                registry.call("softmax", torch.zeros(2, cols))
        default.delete_key(first_call._KEY)
        registry.call("softmax", torch.zeros(2, 6))
        assert dispatcher.check_once is None
        assert json.loads(default.get(first_call._KEY))["rank"] == "0"
    finally:
        dist.destroy_process_group()


def test_the_variable_is_0_or_1() -> None:
    assert [first_call.wanted({first_call.VARIABLE: told}) for told in ("", "0", "1")] == [False, False, True]
    assert not first_call.wanted({})
    with pytest.raises(InvalidArgumentError, match="KERNEL_REGISTRY_AGREE='yes'"):
        first_call.wanted({first_call.VARIABLE: "yes"})
