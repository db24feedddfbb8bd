"""Logging of the command: one line an event, on stderr, with no address in it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from traceback import extract_tb
from types import TracebackType
from typing import Final

from consumers.email.masking import mask_addresses
from outbox.errors import ConfigurationError

_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def set_up(*, verbose: bool) -> None:
    """Log to stderr from ``OUTBOX_LOG_LEVEL`` (INFO if unset) up; ``verbose`` means DEBUG.

    Raises:
        ConfigurationError: ``OUTBOX_LOG_LEVEL`` is no level.
    """
    level = "DEBUG" if verbose else (os.environ.get("OUTBOX_LOG_LEVEL") or "INFO").upper()
    if level not in _LEVELS:
        raise ConfigurationError(f"OUTBOX_LOG_LEVEL: must be one of {', '.join(_LEVELS)}")
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # A line per request, and at DEBUG the headers of each.
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)


class OneLine(logging.Formatter):
    """Formats a record as one line; of an exception, its type and place."""

    def format(self, record: logging.LogRecord) -> str:
        line = mask_addresses(super().format(record))
        return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line)

    def formatException(  # noqa: N802 -- the name is logging's
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, ...]
    ) -> str:
        kind, _, trace = ei if len(ei) == 3 else (None, None, None)
        frames = extract_tb(trace) if isinstance(trace, TracebackType) else []
        place = f" at {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
        return f"{kind.__name__ if kind else 'error'}{place}"
