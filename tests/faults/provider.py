"""The provider of the fault tests: the shop's mail-service, a real process with its own record."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.shop_example.mail_process import mail_process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Provider:
    """A running mail-service."""

    url: str
    record: Path
    keeps_keys: bool

    def plan(self, targeted: Sequence[Mapping[str, Any]], **settings: float) -> None:
        """Say which key's next request meets which fault."""
        self._tell("PUT", "faults", {"targeted": list(targeted), **settings})

    def advance_clock(self, seconds: float) -> None:
        """Let the time that keys are kept for pass."""
        self._tell("POST", "clock", {"advance_seconds": seconds})

    def _tell(self, method: str, what: str, values: dict[str, Any]) -> None:
        url = f"{self.url}/_control/{what}"
        httpx.request(method, url, json=values, trust_env=False).raise_for_status()


@contextmanager
def provider(directory: Path, *, keeps_keys: bool) -> Iterator[Provider]:
    """A mail-service in a process of its own, until the end of the block."""
    options = [] if keeps_keys else ["--no-keys"]
    with mail_process(directory / "record.jsonl", *options) as process:
        yield Provider(process.url, process.record, keeps_keys)
