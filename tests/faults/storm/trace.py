"""What happened to one order, from all that a history has written, in the order of time."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

_STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) (.*)")


def trace(directory: Path, key: str) -> list[str]:
    """The lines: ``SECONDS who what``, from the first one on."""
    events = sorted([*_journals(directory, key), *_logs(directory, key), *_record(directory, key)])
    start = events[0][0] if events else time.time()
    return [f"{at - start:9.3f} s  {line}" for at, line in events]


def _journals(directory: Path, key: str) -> Iterator[tuple[float, str]]:
    for path in directory.glob("*.journal"):
        for line in path.read_text().splitlines():
            at, sign, words = line.split(" ", 2)
            if words.endswith(key) or sign in "*~":
                yield float(at), f"{path.stem} journal {sign} {words}"


def _logs(directory: Path, key: str) -> Iterator[tuple[float, str]]:
    word = re.compile(rf"\b{re.escape(key)}\b")
    for path in directory.glob("life-*.log"):
        for line in path.read_text().splitlines():
            if (found := _STAMP.match(line)) and word.search(line):
                at = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f").astimezone()
                yield at.timestamp(), f"{path.stem} says {found[2]}"


def _record(directory: Path, key: str) -> Iterator[tuple[float, str]]:
    connections = set()
    for line in (directory / "mails.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "received" and event["key"] == key:
            connections.add(event["connection"])
        if event.get("key") == key or event.get("connection") in connections:
            kept = {
                name: event[name]
                for name in ("event", "seq", "connection", "key", "accepted", "replayed", "status",
                             "fault", "by")
                if event.get(name) is not None
            }  # fmt: skip
            yield event["at"], f"mail service {kept}"
