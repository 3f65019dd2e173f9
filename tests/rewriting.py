"""What pytest keeps of test modules, whose assertions it rewrites: written by all processes of a run together.

By itself each process would rewrite all modules of a fresh checkout, for five seconds of a core.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest


def rewrite_a_share(config: pytest.Config, folder: Path, share: int, shares: int) -> None:
    """Write one in ``shares`` of the rewritten modules of a folder, from the ``share``-th on; what is current stays.

    With parts of pytest that are private: where they are others, each process rewrites what it imports, as ever.
    """
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        from _pytest.assertion import rewrite

        if sys.dont_write_bytecode:
            return
        for path in sorted(folder.rglob("test_*.py"))[share::shares]:
            kept = rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
            if rewrite._read_pyc(path, kept) is None and rewrite.try_makedirs(kept.parent):
                told, code = rewrite._rewrite_test(path, config)
                rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, told, kept)
