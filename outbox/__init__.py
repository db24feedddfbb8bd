"""A transactional outbox that keeps a ledger of effects: done once, or accounted for.

A service calls :meth:`Outbox.enqueue` inside its own transaction. Importing this package needs
nothing but Python; enqueueing needs the SQLAlchemy or psycopg that the caller uses anyway.
"""

from outbox.enqueue import Outbox
from outbox.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    InvalidJob,
    LeaseLost,
    OutboxError,
    SchemaError,
    WrongConnection,
)
from outbox.new_job import NewJob

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
    "DatabaseUnavailable",
    "InvalidJob",
    "LeaseLost",
    "NewJob",
    "Outbox",
    "OutboxError",
    "SchemaError",
    "WrongConnection",
    "__version__",
]
