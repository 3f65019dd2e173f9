"""Ranks of a job agree on their winners, or all of them learn who differs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import registry
from registry import distributed
from registry.releases.pinning import RELEASE_VARIABLE
from tuning_db import Store

from .. import fresh
from ..tuning_db.conftest import Make, make

__all__ = ["make"]

PROGRAM = """
import os, sys
import torch, torch.distributed as dist
import registry, tuning_db.store
from registry.errors import ReleaseError

folder, rank = sys.argv[1], int(os.fork() == 0)
sys.stdout = open(f"{folder}/told{rank}", "w")
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
sys.stdout.close()
if not rank:
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
"""Two ranks: the second is forked where all is imported and nothing has happened."""


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
    done = fresh.run("-c", PROGRAM, tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    told = []
    for rank in range(2):
        lines = (tmp_path / f"told{rank}").read_text().splitlines()
        told.append([line.removeprefix("told ") for line in lines if line.startswith("told ")])
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
