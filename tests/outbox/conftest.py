"""What the tests of single statements share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.databases import Databases


@pytest.fixture(scope="module")
def url(databases: Databases) -> Iterator[str]:
    """One database for a file, whose tests leave nothing in it, or begin by emptying it."""
    url = databases.create_migrated()
    yield url
    databases.drop(url)
