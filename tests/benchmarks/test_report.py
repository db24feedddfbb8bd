"""The report, rendered from lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.targets import Read
from tests.benchmarks.lines import line


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the report goes, its plots beside it."""
    monkeypatch.setattr(report, "DOCUMENT", tmp_path / "benchmarks.md")
    monkeypatch.setattr(report, "PLOTS", tmp_path / "benchmarks")
    monkeypatch.setattr(report, "NOTES", tmp_path / "notes.md")
    return tmp_path / "benchmarks.md"


def rendered(document: Path, *lines: Read) -> str:
    """The report of these lines."""
    results = document.with_name("run.jsonl")
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report.write(results)
    return document.read_text()


def test_each_target_has_its_verdict(document: Path) -> None:
    """Met, fell short, or not measured in this run: none is left out."""
    text = rendered(
        document,
        line("drain", "20000 jobs, 4 KB request", {"one / by hand": 0.75, "two / one": 1.1}),
    )
    verdicts = [row for row in text.splitlines() if row.startswith("| ") and "| >=" in row]
    assert "| the same / the statements by hand | >= 0.7 | 0.75 | met |" in verdicts
    assert "| two consumer processes / one | >= 1.2 | 1.1 | **fell short** |" in verdicts
    missing = "| last of ten rounds / first, snapshot held | >= 0.9 | | not measured in this run |"
    assert missing in verdicts


def test_a_line_becomes_a_table_with_its_settings_and_the_oracles_word(document: Path) -> None:
    """Under the title of its kind, with the median, the least and the largest."""
    text = rendered(document, line("drain", "20000 jobs", {"a / b": 0.5}))
    assert "## Drain: no-op effects through the full way" in text
    assert "### 20000 jobs" in text
    assert "| rate | 200 | 100 | 300 | jobs/s |" in text
    assert "| a / b | 0.5 | 0.5 | 0.5 | ratio |" in text
    assert "rounds 2; checked: each ran exactly once." in text


def test_what_people_say_of_the_figures_comes_after_the_targets(document: Path) -> None:
    """Where there is such a file."""
    assert "stands in the way" not in rendered(document, line("drain", "20000 jobs"))
    report.NOTES.write_text("What stands in the way.\n")
    text = rendered(document, line("drain", "20000 jobs"))
    assert text.index("| target |") < text.index("What stands in the way.") < text.index("## Drain")


def test_the_report_says_what_it_was_measured_on(document: Path) -> None:
    """Machine, load, commit and versions."""
    text = rendered(document, line("drain", "20000 jobs"))
    assert "Machine: 2 cores (a processor), 23.5 GB, Linux 6; load average 0.25 to 0.25" in text
    assert "Commit: abc1234. python 3.11.7, postgresql 18.6." in text


@pytest.mark.parametrize("full", [True, False])
def test_a_quick_run_is_called_one(document: Path, full: bool) -> None:
    """Its figures are not those of the targets."""
    text = rendered(document, line("drain", "4000 jobs", full=full))
    assert ("This was a quick run" in text) is not full


def test_the_ten_rounds_are_plotted(document: Path) -> None:
    """As an SVG beside the report, which shows it."""
    text = rendered(document, line("flat", "ten rounds of 50000, snapshot held"))
    assert "![Ten rounds](benchmarks/flat-rounds.svg)" in text
    assert "<polyline" in (document.parent / "benchmarks/flat-rounds.svg").read_text()


def test_each_kind_has_a_title() -> None:
    """What has none would be left out of the report."""
    from benchmarks.__main__ import KINDS

    assert set(report._TITLES) == set(KINDS)
