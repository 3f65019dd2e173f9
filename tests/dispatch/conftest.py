"""Small implementations that tell who ran, a dispatcher of its own, and decisions in a real store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch

from registry import Config, Device, Implementation, Problem, Space
from registry.artifact import Built
from registry.discovery.catalog import Catalog
from registry.dispatch.dispatcher import Dispatcher
from registry.implementation import Run
from tuning_db import CandidateKey, Decision, Environment, Final, ProblemKey, Protocol, Store, Transfer


class Told(Implementation):
    """softmax by torch that remembers each run. What it supports, offers and breaks is up to the test."""

    op = "softmax"
    device_types = frozenset({"cpu", "cuda"})

    def __init__(self, name: str, preference: float = -1.0, **behaviour: Any) -> None:
        self.name = name
        self.runs: list[Config] = []
        self.bound = 0
        self.tried = 0
        """Times that it was run, or was to be run and could not be bound."""
        self.source = "1"
        self._preference = preference
        self._behaviour = behaviour
        for attribute in ("op", "returns_outputs", "deterministic", "capturable", "transfers", "any_size"):
            if attribute in behaviour:
                setattr(self, attribute, behaviour[attribute])

    def unsupported(self, problem: Problem, device: Device) -> Iterable[str]:
        yield from self._behaviour.get("unsupported", lambda problem: ())(problem)

    def space(self, problem: Problem, device: Device) -> Space:
        return Space(block=self._behaviour.get("blocks", lambda problem: [1, 2, 4])(problem))

    def preference(self, problem: Problem, device: Device) -> float:
        return self._preference

    def fingerprint(self) -> str:
        return self.source

    def bind(self, problem: Problem, config: Config, device: Device, built: Built) -> Run:
        self.bound += 1
        if fault := self._behaviour.get("bind_fault"):
            self.tried += 1
            raise fault

        def run(outputs: tuple[torch.Tensor, ...], values: tuple[Any, ...], scratch: tuple[torch.Tensor, ...]) -> Any:
            self.tried += 1
            if fault := self._behaviour.get("run_fault"):
                raise fault
            self.runs.append(config)
            result = self._behaviour.get("result", torch.softmax)(*values)
            if self.returns_outputs:
                return result
            outputs[0].copy_(result)
            return None

        return run


@pytest.fixture
def told() -> type[Told]:
    return Told


@pytest.fixture
def dispatcher() -> Dispatcher:
    """A dispatcher that knows the ops in the box and no implementation."""
    return Dispatcher(Catalog(entry_points=()))


@pytest.fixture
def publish(store: Store) -> Callable[..., Decision]:
    """Store a decision about softmax on this CPU."""

    def publish(
        dims: Mapping[str, Any],
        implementation: str,
        config: Mapping[str, Any],
        *,
        fingerprint: str = "1",
        op_version: int = 1,
        hardware: Mapping[str, Any] | None = None,
        software: Mapping[str, Any] | None = None,
        baselines: Mapping[str, float] | None = None,
        finals: Mapping[str, Mapping[str, Any]] | None = None,
        transfers: Mapping[str, Transfer] | None = None,
        interval: tuple[float, float] = (1.2, 1.3),
    ) -> Decision:
        device = Device.of("cpu")
        environment = Environment(
            device.hardware() if hardware is None else hardware, device.software() if software is None else software
        )
        decision = Decision(
            problem=ProblemKey("softmax", op_version, dims, ("cols", "dtype")),
            environment=environment,
            protocol=Protocol("cold"),
            candidate=CandidateKey(implementation, fingerprint, config),
            median_us=12.5,
            floor_us=10.0,
            verdict="new",
            baselines=baselines or {},
            ratio=1.25,
            lo=interval[0],
            hi=interval[1],
            transfers=transfers or {},
        )
        met = {implementation: config, **(finals or {})}
        keys = [CandidateKey(name, fingerprint, its) for name, its in met.items()]
        times = [12.5 * (decision.time_over(key.implementation) or 1.0) for key in keys]
        rows = [
            Final(key, "candidate", 0, turn, place, us + turn / 100)
            for turn in range(3)
            for place, (key, us) in enumerate(zip(keys, times, strict=True))
        ]
        store.publish(store.start_run(environment), decision, rows if finals else ())
        return decision

    return publish
