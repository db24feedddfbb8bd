"""A package that is there, and yet is searched for in vain."""

from __future__ import annotations

import pytest

from benchmarks.without_sniffio import _Searching, hide


def test_the_hidden_package_alone_is_not_found() -> None:
    """All others are found as ever."""
    finder = _Searching("sniffio")
    assert finder.find_spec("sniffio") is None
    found = finder.find_spec("httpx")
    assert found is not None
    assert found.name == "httpx"


def test_what_is_imported_already_is_not_hidden() -> None:
    """It would be used all the same, and the comparison would compare nothing."""
    with pytest.raises(AssertionError, match="json is imported already"):
        hide("json")
