"""docs/promises.md says nothing that isn't there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "promises.md"
#: Promises that have no attack of their own yet, and say so.
UNATTACKED = {10, 15}


def _rows() -> dict[int, list[str]]:
    """The cells of each promise's row."""
    lines = [line for line in DOCS.read_text().splitlines() if re.match(r"\| \d+ \|", line)]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {int(number): rest for number, *rest in cells}


def _places(text: str) -> list[str]:
    """The paths that a text names in code style."""
    return re.findall(r"`((?:outbox|consumers|shop_example|tests|docs)/[\w./-]+)`", text)


def test_every_promise_has_its_row() -> None:
    """All fifteen, each with a promise, what keeps it, and what attacks it."""
    rows = _rows()
    assert list(rows) == list(range(1, 16))
    assert all(len(cells) == 3 and all(cells) for cells in rows.values())


@pytest.mark.parametrize("number", sorted(set(range(1, 16)) - UNATTACKED))
def test_a_promise_names_the_code_that_keeps_it_and_the_test_that_attacks_it(number: int) -> None:
    """At least one place of the code, and a test file under tests/."""
    _, kept_by, attacked_by = _rows()[number]
    assert _places(kept_by)
    assert any(Path(place).name.startswith("test_") for place in _places(attacked_by))


def test_every_place_that_the_docs_name_is_there() -> None:
    """Renamed code takes its row along."""
    missing = [place for place in _places(DOCS.read_text()) if not (ROOT / place).exists()]
    assert missing == []


def test_every_file_of_promises_is_named_in_a_row() -> None:
    """An attack that no promise knows of is an attack on nothing."""
    files = {f"tests/promises/{file.name}" for file in (ROOT / "tests/promises").glob("test_*.py")}
    assert files <= set(_places(DOCS.read_text()))


def test_every_attack_says_which_promise_it_is_about() -> None:
    """The first line of each file under tests/promises/ names its promise's number."""
    for number, (_, _, attacked_by) in _rows().items():
        for place in _places(attacked_by):
            if place.startswith("tests/promises/"):
                first_line = (ROOT / place).read_text().partition("\n")[0]
                assert f"Promise {number}:" in first_line, place
