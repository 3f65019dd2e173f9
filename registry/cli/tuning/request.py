"""The request of a ``tune`` command: its options, checked, and the run that they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..problems.options import ModelOptions
from ..problems.sandboxed import check_sandboxed
from ..problems.told import check_source, told_shapes

if TYPE_CHECKING:
    from ...device import Device
    from ...discovery.catalog import Catalog
    from ...tuner.options import TuneOptions
    from ...tuner.shapes.shapes import Shapes


@dataclass(frozen=True)
class TuneRequest:
    """The options of ``tune``, see its help; ``ops`` and ``implementations`` are names, empty for all."""

    shapes: Path | None
    model: ModelOptions
    misses: bool
    ops: tuple[str, ...]
    implementations: tuple[str, ...]
    device: str | None
    db: str | None
    budget: float | None
    trials: int | None
    time_limit: float | None
    plugins: tuple[Path, ...]
    dry_run: bool
    retune: bool
    all_sizes: bool
    regime: str
    sampler: str
    storage: str
    fleet: str | None
    compilers: int
    sandbox: bool
    json: bool

    def check(self) -> None:
        """Raise for options that do not go together, or have no meaning: BadParameter, RegistryError."""
        limits = {"--budget": self.budget, "--trials": self.trials, "--time-limit": self.time_limit}
        for option, value in limits.items():
            if value is not None and not value > 0:
                raise typer.BadParameter(f"{option} {value:g}: expected more than 0")
        check_source(self.shapes, self.model, misses=self.misses)
        if self.sandbox:
            check_sandboxed(self.db)
        if self.fleet is not None:
            self._refuse_beside_fleet()

    def _refuse_beside_fleet(self) -> None:
        given = {
            "--time-limit": self.time_limit, "--storage": self.storage, "--dry-run": self.dry_run,
            "--json": self.json, "--sandbox": self.sandbox,
        }  # fmt: skip
        if names := [name for name, value in given.items() if value]:
            raise typer.BadParameter(f"{', '.join(names)} with --fleet: jobs are tuned one by one, by many workers")

    def problems(self, catalog: Catalog, device: Device) -> tuple[Shapes, tuple[str, ...]]:
        """The problems, and notes on them; ``device`` is one that they are tuned on."""
        return told_shapes(self.shapes, self.model, catalog, self.ops, device)

    def options(self) -> TuneOptions:
        """The options of the tuning run."""
        from ...tuner.limits import Budget
        from ...tuner.options import TuneOptions

        return TuneOptions(
            Budget(self.budget, self.trials, run_seconds=self.time_limit), implementations=self.implementations,
            retune=self.retune, all_sizes=self.all_sizes, regime=self.regime, sampler=self.sampler,
            storage=self.storage,
        )  # fmt: skip
