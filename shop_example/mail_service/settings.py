"""What a mail-service is started with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_PORT = 8025
DEFAULT_KEY_WINDOW_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Settings:
    """One service's settings; ``command`` reads them from the command line.

    ``api_key`` None: any Bearer token that isn't empty will do. ``rate_limit`` None: no limit.
    """

    record: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    keeps_keys: bool = True
    key_window_seconds: float = DEFAULT_KEY_WINDOW_SECONDS
    api_key: str | None = field(default=None, repr=False)
    rates: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    latency_seconds: float = 0.0
    rate_limit: int | None = None


def default_record(environment: Mapping[str, str] = os.environ) -> Path:
    """The record in the user's data directory (XDG_DATA_HOME, else ~/.local/share)."""
    base = environment.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "shop-example" / "mail-service.jsonl"
