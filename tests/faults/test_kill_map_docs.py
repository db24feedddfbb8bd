"""The kill map in docs/ is what the tests assert."""

from __future__ import annotations

from tests.faults.kill_map import FILE, render


def test_the_kill_map_in_docs_is_the_one_that_the_tests_run_by() -> None:
    """Not a word differs from what is generated."""
    written = FILE.read_text(encoding="utf-8")
    assert written == render(), (
        "docs/kill-map.md is not what the tests run by; write it anew with "
        "`python -m tests.faults.kill_map`, and read what has changed"
    )
