"""Log lines: one an event, and nothing in them that names a person."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from consumers.email import logs
from outbox.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


def test_a_record_is_one_line_without_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a library writes into it."""
    logs.set_up(verbose=False)
    logging.getLogger("some.library").warning("sent to %s\n\x1b[31mred", "jane@example.com")
    line = capsys.readouterr().err
    assert line.endswith("WARNING sent to j***@e***\\x0a\\x1b[31mred\n")


def test_an_exception_is_its_type_and_place(capsys: pytest.CaptureFixture[str]) -> None:
    """Its text and its variables stay out."""
    logs.set_up(verbose=False)
    try:
        raise RuntimeError("jane@example.com is secret")
    except RuntimeError:
        logging.getLogger().exception("failed")
    line = capsys.readouterr().err
    assert "RuntimeError at test_logs.py line " in line
    assert "secret" not in line
    assert len(line.splitlines()) == 1


def test_the_level_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """OUTBOX_LOG_LEVEL, in any case."""
    monkeypatch.setenv("OUTBOX_LOG_LEVEL", "warning")
    logs.set_up(verbose=False)
    logging.getLogger().info("quiet")
    logging.getLogger().warning("loud")
    assert "quiet" not in (lines := capsys.readouterr().err)
    assert "loud" in lines


def test_verbose_says_more_but_never_headers(capsys: pytest.CaptureFixture[str]) -> None:
    """The HTTP client's own lines hold the API key's header."""
    logs.set_up(verbose=True)
    logging.getLogger("outbox").debug("more")
    logging.getLogger("httpcore.http11").debug("Authorization")
    logging.getLogger("httpx").info("HTTP Request")
    lines = capsys.readouterr().err
    assert "more" in lines
    assert "Authorization" not in lines
    assert "HTTP Request" not in lines


def test_a_level_that_isnt_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With those that are."""
    monkeypatch.setenv("OUTBOX_LOG_LEVEL", "loud")
    with pytest.raises(ConfigurationError, match=r"^OUTBOX_LOG_LEVEL: must be one of DEBUG, "):
        logs.set_up(verbose=False)
