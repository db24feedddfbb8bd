"""What every test may ask for: a database of its own, connections to it, and a clean house."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.databases import databases as databases_of_this_process
from tests.databases import server_directory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterator

    from tests.databases import Databases

# A developer's own settings must change no test, and a command that is started without a database
# must not find the developer's.
for name in list(os.environ):
    if name.startswith(("OUTBOX_", "EMAIL_")) and name != "OUTBOX_TEST_DATABASE_URL":
        del os.environ[name]
os.environ["OUTBOX_EMBEDDED_DIR"] = str(server_directory())


PROMISES = Path(__file__).parent / "promises"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What the product exists for is tested first, the fences before all."""
    fences = PROMISES / "test_a_stale_claim_changes_nothing.py"
    items.sort(key=lambda item: (PROMISES not in item.path.parents, item.path != fences))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where a promise is broken, nothing else matters: the run ends."""
    report = yield
    if report.failed and PROMISES in item.path.parents:
        item.session.shouldfail = f"a promise is broken: {item.nodeid}"
    return report


@pytest.fixture(autouse=True)
def imports_end_with_the_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module that a test has written isn't what another one imports by the same name."""
    search_path, imported = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = search_path
    written_here = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - imported:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(written_here):
            del sys.modules[name]


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    """Makes the databases of this test process."""
    with databases_of_this_process() as databases:
        yield databases


@pytest.fixture
def database_url(databases: Databases) -> Iterator[str]:
    """The ``postgresql://`` URL of a database with the outbox schema and no rows."""
    url = databases.create_migrated()
    yield url
    databases.drop(url)


@pytest.fixture
def empty_database_url(databases: Databases) -> Iterator[str]:
    """The ``postgresql://`` URL of a database with nothing in it."""
    url = databases.create_empty()
    yield url
    databases.drop(url)


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    """An autocommit connection to the test's database."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def aconnection(database_url: str) -> AsyncIterator[psycopg.AsyncConnection]:
    """An async autocommit connection to the test's database."""
    connection = await psycopg.AsyncConnection.connect(database_url, autocommit=True)
    async with connection:
        yield connection


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, object, object]:
    """Let a report travel between test processes even when it quotes text that is no UTF-8."""
    return _encodable((yield))


def _encodable(data: object) -> object:
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode()
    if isinstance(data, dict):
        return {_encodable(key): _encodable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(_encodable(item) for item in data)
    return data


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left_running() -> Iterator[None]:
    """Fails a run whose tests started processes that still run at its end."""
    before = _children()
    yield
    left = {pid: command for pid, command in _children().items() if pid not in before}
    assert not left, f"tests left processes running: {left}"


def _children() -> dict[int, str]:
    """The commands of this process's children by process id; none where there is no /proc."""
    found = {}
    for listing in Path("/proc/self/task").glob("*/children"):
        for pid in listing.read_text().split():
            with contextlib.suppress(FileNotFoundError):
                command = Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(pid)] = command.decode()
    # multiprocessing keeps its tracker for itself until the interpreter ends.
    return {pid: command for pid, command in found.items() if "resource_tracker" not in command}
