"""A pytest plugin that writes down which statements each test uses, and how long it takes."""

from __future__ import annotations

import json
import os
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outbox import caller, statements

if TYPE_CHECKING:
    from collections.abc import Iterator

USAGE = "MUTANTS_USAGE"
_used: set[str] = set()
_read = statements.text.__wrapped__


@cache
def _text(name: str) -> str:
    _used.add(name)
    return _read(name)


def forget() -> None:
    """Let the next use of each statement read it anew."""
    for cached in (statements.text, statements.psycopg, statements.parameters):
        cached.cache_clear()
    caller._sqlalchemy_text.cache_clear()


def pytest_configure() -> None:
    """Watch the one way by which statements are read."""
    if USAGE in os.environ:
        statements.text = _text


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """One line a test."""
    if USAGE not in os.environ:
        return (yield)
    forget()
    _used.clear()
    start = time.monotonic()
    result = yield
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    line = {
        "test": item.nodeid,
        "statements": sorted(_used),
        "seconds": round(time.monotonic() - start, 2),
    }
    with Path(os.environ[USAGE], f"{worker}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    return result
