"""What the fault tests share: hands that fork consumers, and a provider of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faults.crew import crew
from tests.faults.provider import provider

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.databases import Databases
    from tests.faults.crew import Crew
    from tests.faults.provider import Provider


@pytest.fixture(scope="session")
def hands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Two hands: these tests wait for leases more than they work."""
    with crew(tmp_path_factory.mktemp("hands"), 2) as hands:
        yield hands


@pytest.fixture(scope="session", params=["keys", "no keys"])
def each_provider(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Provider]:
    """A provider that replays keys for a day, and then one that keeps none."""
    with provider(tmp_path_factory.mktemp("provider"), keeps_keys=request.param == "keys") as one:
        yield one


@pytest.fixture
def replaying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    """A provider that replays keys, with a record of this test's own."""
    with provider(tmp_path_factory.mktemp("provider"), keeps_keys=True) as one:
        yield one


@pytest.fixture
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    """A provider without keys, with a record of this test's own."""
    with provider(tmp_path_factory.mktemp("provider"), keeps_keys=False) as one:
        yield one


@pytest.fixture
def database_url(databases: Databases) -> Iterator[str]:
    """A database of the test's own."""
    url = databases.create_migrated()
    yield url
    databases.drop(url)
