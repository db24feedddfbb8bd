"""A place where one process is held: at a statement or at its call, until the trace goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

from outbox.connection import Connection
from outbox.errors import DatabaseUnavailable

Row = TypeVar("Row")

#: Nothing here takes long; whoever waits for so long waits for something that won't come.
WAIT_SECONDS = 20.0
#: The statements of one job's story; the others run as soon as they are called.
HELD = frozenset({"begin_effects", "read_effects", "reopen_effects", "settle_attempts"})
END = "end"


class Disagreement(AssertionError):
    """The model and the code have gone different ways, ``at`` which step of the trace."""

    at = 0


class Seat:
    """Passes orders from the trace to the process, and says where the process is."""

    def __init__(self) -> None:
        self._at = _future()
        self._ran = _future()
        self._orders: asyncio.Queue[Any] = asyncio.Queue()
        self._answer_on_its_way = False
        self.loses_claims = False
        #: Of the statement at which the process is held.
        self.parameters: Mapping[str, Any] = {}

    # -- for the process ---------------------------------------------------------------------------

    async def order(self, point: str) -> Any:
        """Arrive at a point, and return what the trace orders there."""
        self._at.set_result(point)
        return await self._orders.get()

    async def answer_arrives(self) -> bool:
        """Say that the statement has run, and wait for what becomes of its answer."""
        self._ran.set_result(None)
        return bool(await self._orders.get())

    def fail(self, error: Exception) -> None:
        """Say that the database has refused the statement, which no trace foresees."""
        self._ran.set_exception(Disagreement(f"the database refused a statement: {error}"))

    def end(self, how: str) -> None:
        """Arrive at the end of the job's story."""
        if not self._at.done():
            self._at.set_result(how)

    # -- for the trace -----------------------------------------------------------------------------

    async def point(self) -> str:
        """Let an answer arrive that is on its way; return where the process is then."""
        if self._answer_on_its_way:
            self.let_answer(arrive=True)
        async with asyncio.timeout(WAIT_SECONDS):
            return str(await asyncio.shield(self._at))

    async def expect(self, wanted: str) -> None:
        """Check where the process is."""
        if (found := await self.point()) != wanted:
            raise Disagreement(f"the model is at {wanted}, the code at {found}")

    async def go_on(self, point: str, order: object = None) -> None:
        """Let the process go on from where it must be."""
        await self.expect(point)
        self._at = _future()
        self._orders.put_nowait(order)

    async def run(self, statement: str) -> None:
        """Let a statement run; its answer is on its way then."""
        self._ran = _future()
        await self.go_on(statement)
        async with asyncio.timeout(WAIT_SECONDS):
            await self._ran
        self._answer_on_its_way = True

    def let_answer(self, *, arrive: bool) -> None:
        """Decide about the answer that is on its way."""
        self._answer_on_its_way = False
        self._orders.put_nowait(arrive)

    def reset(self) -> None:
        """Another story begins."""
        self._at = _future()


class Line:
    """The real connection on which the statements of all processes run at the moment."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection


class HeldConnection(Connection):
    """A consumer's connection whose statements wait in a seat, and run on the line."""

    def __init__(self, line: Line, seat: Seat) -> None:
        # Not the parent's: this one never connects.
        self._line = line
        self._seat = seat

    async def fetch(self, kind: type[Row], statement: str, /, **parameters: object) -> list[Row]:
        if statement not in HELD:
            rows = await self._line.connection.fetch(kind, statement, **parameters)
            if self._seat.loses_claims and statement.startswith("claim"):
                raise DatabaseUnavailable("the answer to a claim was lost")
            return rows
        self._seat.parameters = parameters
        await self._seat.order(statement)
        try:
            rows = await self._line.connection.fetch(kind, statement, **parameters)
        except Exception as error:
            self._seat.fail(error)
            raise
        if not await self._seat.answer_arrives():
            raise DatabaseUnavailable("the answer was lost")
        return rows


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()
