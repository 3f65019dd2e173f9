"""Ranks of a job agree on their winners, or all of them learn who differs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import registry
from registry import distributed
from registry.releases.pinning import RELEASE_VARIABLE
from tuning_db import Store

from ..tuning_db.conftest import Make, make

__all__ = ["make"]

PROGRAM = """
import os, sys
import torch.distributed as dist
import registry
from registry.errors import ReleaseError

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
told = registry.distributed.agree()
print("told", told["release"])
for variable, value in (("KERNEL_REGISTRY_RELEASE", "two"), ("KERNEL_REGISTRY_RELEASE", "three")):
    os.environ.pop(variable, None)
    if rank:
        os.environ[variable] = value
    registry.api.dispatcher.forget()
    try:
        registry.distributed.agree()
    except ReleaseError as fault:
        print("told", fault.message)
dist.destroy_process_group()
"""


def test_every_rank_is_told_who_differs(tmp_path: Path, make: Make) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        run = store.start_run(make.environment)
        store.publish(run, make.decision())
        one = store.create_release("one")
        store.publish(run, make.decision(make.problem(rows=1)))
        two = store.create_release("two")
    environment = {
        **os.environ,
        RELEASE_VARIABLE: "one",
        "KERNEL_REGISTRY_DB": str(tmp_path / "tuning.db"),
        "KERNEL_REGISTRY_CACHE": str(tmp_path / "cache"),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(tmp_path)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    told = []
    for rank in ranks:
        out, err = rank.communicate(timeout=300)
        assert rank.returncode == 0, err
        told.append([line.removeprefix("told ") for line in out.splitlines() if line.startswith("told ")])
    assert told[0] == told[1]
    agreed, different, missing = told[0]
    assert agreed == one.id
    assert f"release: none on rank 0, {two.id[:20]} on rank 1" in different
    assert "mode" not in different
    assert "rank 1: ReleaseError: there is no release three" in missing


def test_a_program_of_one_process_agrees_with_itself(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_REGISTRY_DB", str(tmp_path / "tuning.db"))
    registry.api.dispatcher.forget()
    before = distributed.agree()
    assert (before["release"], before["winners"], before["mode"]) == ("none", "none", "tuned")
    with Store.open() as store:
        store.publish(store.start_run(make.environment), make.decision())
    assert distributed.agree()["winners"] != "none"
