"""docs/mail-service.md says all there is to say to who reads the record or orders faults."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from shop_example.mail_service.command import _parser
from shop_example.mail_service.events import Event
from shop_example.mail_service.faults import FAULTS

DOCS = (Path(__file__).parents[2] / "docs" / "mail-service.md").read_text()
NAMES = set(re.findall(r"[\w.-]+", DOCS))


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_explained(fault: str) -> None:
    """In one of the two tables."""
    assert re.search(rf"^\|[^|]*`{fault}`[^|]*\|", DOCS, re.MULTILINE)


@pytest.mark.parametrize("kind", get_args(Event))
def test_every_event_and_field_of_the_record_is_explained(kind: type[Event]) -> None:
    """The event has its row, and the row names its fields."""
    row = re.search(rf"^\| `{kind.event}` \|.*$", DOCS, re.MULTILINE)
    assert row is not None
    for field in fields(kind):
        assert field.name == "at" or f"`{field.name}`" in row.group()


def test_every_option_is_explained() -> None:
    """All that --help knows, but --help itself."""
    options = {name for action in _parser()._actions for name in action.option_strings}
    assert {f"--{name}" for name in ("host", "port", "record")} < options
    assert options - {"-h", "--help"} <= NAMES


def test_the_example_of_counting_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The code that judges are shown finds a duplicate."""
    record = tmp_path / "mails.jsonl"
    decided = '{"event":"decided","key":"k","accepted":true}\n'
    record.write_text('{"event":"received","path":"/emails","key":"k"}\n' + decided * 2 + '{"torn')
    found = re.search(r"```python\n(.*?)```", DOCS, re.DOTALL)
    assert found is not None
    monkeypatch.chdir(tmp_path)
    exec(found[1], {})  # noqa: S102 - the project's own documentation
    assert capsys.readouterr().out == "{'k': 2}\n"
