"""What a result line says, and that it is one line of JSON."""

from __future__ import annotations

import json

import pytest

from benchmarks.record import Figure, Line, environment, ratio
from tests.benchmarks.lines import ENVIRONMENT


def test_a_figure_is_the_median_of_its_rounds_with_the_least_and_the_largest() -> None:
    """All rounds are kept beside it, in their order."""
    assert Figure("ms", [3.0, 1.0, 100.0]).as_json() == {
        "unit": "ms",
        "median": 3.0,
        "min": 1.0,
        "max": 100.0,
        "values": [3.0, 1.0, 100.0],
    }


def test_numbers_have_five_digits() -> None:
    """More would say what no measurement knows."""
    assert Figure("jobs/s", [12345.678]).as_json()["values"] == [12346.0]
    assert Figure("ms", [0.123456789]).as_json()["values"] == [0.12346]


def test_ratios_are_formed_round_by_round() -> None:
    """The median of the ratios, which is not the ratio of the medians."""
    formed = ratio([10.0, 2.0, 30.0], [1.0, 2.0, 10.0])
    assert formed.values == [10.0, 1.0, 3.0]
    assert formed.median == 3.0
    assert formed.unit == "ratio"


def test_a_ratio_of_unequal_rounds_is_refused() -> None:
    """A round that one contender misses has nothing to be compared with."""
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0])


def test_a_line_is_one_line_of_json_with_what_it_was_measured_on() -> None:
    """Figures, ratios, settings, the oracle's word and the environment."""
    text = Line(
        "drain",
        "20000 jobs",
        {"rate": Figure("jobs/s", [1.0])},
        checked="counted\ntwice",
        ratios={"a / b": Figure("ratio", [0.5])},
        settings={"rounds": 1},
    ).as_json(ENVIRONMENT)
    assert "\n" not in text
    read = json.loads(text)
    assert (read["kind"], read["case"], read["checked"]) == (
        "drain",
        "20000 jobs",
        "counted\ntwice",
    )
    assert read["figures"]["rate"]["median"] == 1.0
    assert read["ratios"]["a / b"]["median"] == 0.5
    assert read["settings"] == {"rounds": 1}
    assert {name: read[name] for name in ENVIRONMENT} == ENVIRONMENT


def test_the_environment_names_versions_commit_and_machine() -> None:
    """It can be written as JSON as it is."""
    read = json.loads(json.dumps(environment("18.6", full=False)))
    assert read["full"] is False
    assert read["versions"]["postgresql"] == "18.6"
    assert read["commit"]
    assert read["machine"]["cores"] >= 1
