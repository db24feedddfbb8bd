"""Waiting in tests: for a condition, with a deadline. The one place that may sleep."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

POLL_SECONDS = 0.005


def eventually(condition: Callable[[], T | None], timeout: float = 10) -> T:
    """Ask until the answer is true, and return it; AssertionError after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() > deadline
        if answer := condition():
            return answer
        assert not late, f"still {answer!r} after {timeout} s: {_name(condition)}"
        time.sleep(POLL_SECONDS)


async def aeventually(condition: Callable[[], Awaitable[T | None]], timeout: float = 10) -> T:
    """The same for a condition that has to be awaited."""
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() > deadline
        if answer := await condition():
            return answer
        assert not late, f"still {answer!r} after {timeout} s: {_name(condition)}"
        await asyncio.sleep(POLL_SECONDS)


def _name(condition: Callable[..., object]) -> str:
    return str(getattr(condition, "__qualname__", condition))
