"""A copy of the checkout to mutate, so that nobody else ever sees a mutant."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
_PARTS = ("outbox", "consumers", "shop_example", "tests", "benchmarks", "docs")


@contextmanager
def copied() -> Iterator[Path]:
    """A copy that lasts as long as the block."""
    with tempfile.TemporaryDirectory(prefix="outbox-mutants-") as directory:
        tree = Path(directory)
        for part in _PARTS:
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md"):
            shutil.copy2(ROOT / name, tree / name)
        yield tree


def environment(tree: Path, **more: str) -> dict[str, str]:
    """Where a copy's code is found first, in child processes too."""
    return os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"} | more
