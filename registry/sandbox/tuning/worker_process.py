"""The process that owns the device of a run in sandboxes.

``... worker_process DESCRIPTOR PARENT DEVICE IDENTITY FILES LIMITS``. It imports installed
plugins, for their ops, and no plugin file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ...discovery.catalog import Catalog
from ...tuner.processes.process import Parent
from ...tuner.workers.worker_process import INTEGRITY, serve
from ..limits import SandboxLimits
from .worker import SandboxedWorker


def main(arguments: Sequence[str]) -> None:
    """Answer jobs. ``FILES``: JSON, the plugin file of each implementation that is not installed, by ``op/name``."""
    parent = Parent(int(arguments[0]), int(arguments[1]))
    files = {name: Path(path) for name, path in json.loads(arguments[4]).items()}
    limits, catalog = SandboxLimits(**json.loads(arguments[5])), Catalog()
    serve(
        parent, arguments[2], arguments[3], lambda device: SandboxedWorker(catalog, device, files, limits, INTEGRITY)
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
