"""What the demo shows of its progress and its verdicts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from shop_example.demo import screen
from shop_example.demo.judge import Evidence, Verdict, judge

TRACES = screen.Traces(
    "postgresql://db/outbox_demo_keys", Path("/var/record.jsonl"), "email-order-7"
)
CLEAN = judge(Evidence(True, frozenset(), 0, (), (), ()))


@pytest.mark.parametrize("provider_keys", [True, False])
def test_a_clean_verdict_is_said_in_words(
    capsys: pytest.CaptureFixture[str], provider_keys: bool
) -> None:
    """With the title of its part and the commands for looking further."""
    screen.print_summary(dataclasses.replace(CLEAN, provider_keys=provider_keys), TRACES)
    said = capsys.readouterr().out
    assert screen.TITLES[provider_keys] in said
    assert screen.CONCLUSIONS[provider_keys] in said
    assert "outbox effects show email-order-7" in said
    assert "WRONG" not in said


def test_what_is_wrong_is_said_and_not_the_conclusion(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first ten of them, and how many more there are."""
    verdict = dataclasses.replace(CLEAN, problems=[f"email-order-{n}: lost" for n in range(12)])
    screen.print_summary(verdict, TRACES)
    said = capsys.readouterr().out
    assert said.count("WRONG") == 11
    assert "WRONG: and 2 more" in said
    assert screen.CONCLUSIONS[True] not in said


def test_faults_are_shown_most_frequent_first(capsys: pytest.CaptureFixture[str]) -> None:
    """No line is wider than a hundred characters, however many kinds there were."""
    faults = {f"fault_number_{n}": n for n in range(1, 20)}
    screen.print_summary(dataclasses.replace(CLEAN, faults=faults), TRACES)
    said = capsys.readouterr().out
    assert said.index("fault_number_19 19") < said.index("fault_number_2 2")
    assert max(map(len, said.splitlines())) <= 100


def test_json_is_one_line_with_every_count(capsys: pytest.CaptureFixture[str]) -> None:
    """And where the evidence is."""
    screen.print_json(CLEAN, TRACES)
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found.keys() >= {field.name for field in dataclasses.fields(Verdict)}
    assert found["record"] == "/var/record.jsonl"


def test_without_a_terminal_progress_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stderr, so that stdout is the verdict's alone."""
    monkeypatch.setattr(screen, "LINE_SECONDS", 0)
    with screen.meter(provider_keys=True, orders=40, kills=2) as meter:
        meter.show(orders=3, kills=1, emails=2)
        meter.say("it goes on")
    said = capsys.readouterr()
    assert said.out == ""
    assert "orders 3/40, kills 1/2, e-mails 2/40" in said.err
    assert "it goes on" in said.err
