"""Lines of a made-up run, as they are read back from JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from benchmarks.record import Figure, Line

ENVIRONMENT: Mapping[str, object] = {
    "full": True,
    "versions": {"python": "3.11.7", "postgresql": "18.6"},
    "commit": "abc1234",
    "machine": {
        "cpu": "a processor",
        "cores": 2,
        "memory_gb": 23.5,
        "system": "Linux 6",
        "load": 0.25,
    },
}


def line(
    kind: str, case: str, ratios: Mapping[str, float] = MappingProxyType({}), *, full: bool = True
) -> dict[str, Any]:
    """A line with these ratios, each measured once, and a rate in jobs/s."""
    made = Line(
        kind,
        case,
        {"rate": Figure("jobs/s", [100.0, 300.0])},
        checked="each ran exactly once",
        ratios={name: Figure("ratio", [value]) for name, value in ratios.items()},
        settings={"rounds": 2},
    )
    read: dict[str, Any] = json.loads(made.as_json({**ENVIRONMENT, "full": full}))
    return read
