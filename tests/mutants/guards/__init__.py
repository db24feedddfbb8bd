"""Every guard of the product, removed or changed one at a time."""

from __future__ import annotations

from tests.mutants.guards.claims import CLAIMS
from tests.mutants.guards.effects import EFFECTS
from tests.mutants.guards.people import PEOPLE
from tests.mutants.guards.queue import QUEUE
from tests.mutants.guards.schema import SCHEMA
from tests.mutants.guards.settling import SETTLING

MUTANTS = [*QUEUE, *CLAIMS, *EFFECTS, *SETTLING, *PEOPLE, *SCHEMA]
