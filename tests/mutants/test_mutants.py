"""Every guard of the product has a mutant, each mutant is one, and the gravest die at once."""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING

import psycopg
import pytest

from outbox import statements
from tests.mutants.guards import MUTANTS
from tests.mutants.lines import untouched, writing
from tests.mutants.mutant import Edit, Mutant, read
from tests.mutants.session import killer_among

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.databases import Databases

STATEMENTS = sorted({mutant.file for mutant in MUTANTS if mutant.file.startswith("sql/")})
PROMISES = "tests/promises/test_"
GRAVE = {
    "settle_attempts: no fence":
        "a_stale_claim_changes_nothing.py::"
        "test_an_outcome_under_an_old_version_of_ones_own_claim_changes_nothing",
    "begin_effects: every version":
        "a_stale_claim_changes_nothing.py::"
        "test_begin_writes_no_intent_for_a_claim_of_another_version",
    "begin_effects: lapsed ones too":
        "a_stale_claim_changes_nothing.py::test_begin_writes_no_intent_once_the_lease_is_over",
    "extend_leases: lapsed ones too":
        "a_stale_claim_changes_nothing.py::test_a_heartbeat_revives_no_lease_that_has_run_out",
    "consumer: the call does not wait for the intent":
        "a_repeat_carries_the_same_key_and_bytes.py",
}  # fmt: skip


@pytest.fixture(scope="module")
def migrated(databases: Databases) -> Iterator[psycopg.Connection]:
    """A database to prepare statements in."""
    url = databases.create_migrated()
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection
    databases.drop(url)


@pytest.mark.parametrize("file", STATEMENTS)
def test_each_mutant_still_has_its_guard_and_is_a_statement(
    file: str, migrated: psycopg.Connection
) -> None:
    """One that the server refuses would be killed by any test, and say nothing."""
    for mutant in MUTANTS:
        if mutant.file == file:
            text = mutant.apply(read(file))
            assert text != read(file), mutant.name
            query = statements._PARAMETER.sub("NULL", text)
            try:
                migrated.execute(f"EXPLAIN {query}".encode())
            except psycopg.Error as error:
                pytest.fail(f"{mutant.name}: {error}")


@pytest.mark.parametrize(
    "mutant", [m for m in MUTANTS if m.file.endswith(".py")], ids=lambda mutant: mutant.file
)
def test_each_mutant_of_python_still_has_its_place_and_is_python(mutant: Mutant) -> None:
    """The same for the few that are no SQL."""
    ast.parse(mutant.apply(read(mutant.file)))


def test_each_mutant_of_the_schema_still_has_its_constraint() -> None:
    """Whether it is SQL shows when it is run: a migration is a transaction of its own."""
    for mutant in MUTANTS:
        if mutant.file.startswith("migrations/"):
            assert mutant.apply(read(mutant.file)) != read(mutant.file)


@pytest.mark.parametrize("file", writing())
def test_each_guard_of_a_statement_has_a_mutant(file: str) -> None:
    """A new guard needs a new mutant: add it to tests/mutants/guards/, and run it."""
    assert untouched(file, MUTANTS) == []


def test_a_guard_without_a_mutant_is_noticed() -> None:
    """The lines of a statement are told apart by what is in them."""
    mutants = [mutant for mutant in MUTANTS if mutant.name != "begin_effects: any order of keys"]
    assert untouched("sql/begin_effects.sql", mutants) == ["ORDER BY claim.effect_key"]


def test_a_text_that_is_not_there_once_is_no_mutant() -> None:
    """Neither a typing error nor a guess at which of two is meant."""
    for text in ("nowhere", "job.id"):
        with pytest.raises(LookupError, match="times in"):
            Mutant("m", "sql/begin_effects.sql", Edit(text, "")).apply("job.id = job.id")


def test_no_name_is_given_twice() -> None:
    """The table goes by names."""
    assert [name for name, times in Counter(m.name for m in MUTANTS).items() if times > 1] == []


@pytest.mark.parametrize("name", GRAVE)
def test_a_grave_mutant_dies(name: str) -> None:
    """With the intent, the fence or the lease gone, a test of a promise fails."""
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == name]
    assert killer_among([PROMISES + GRAVE[name]], mutant)
