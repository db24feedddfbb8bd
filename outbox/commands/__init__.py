"""The ``outbox`` command: exit code 0 fine, 1 it failed or the answer is no, 2 wrong use."""

from __future__ import annotations

import sys

#: What the extra ``consumer`` brings; anything else that is missing is a fault of its own.
_OF_THE_EXTRA = frozenset({"psycopg", "pydantic", "pydantic_settings", "rich", "typer"})


def main() -> None:
    """Run the command; never returns."""
    try:
        from outbox.commands.app import run
    except ImportError as error:
        # psycopg without libpq raises an ImportError of its own.
        missing = (error.name or "psycopg").partition(".")[0]
        if missing not in _OF_THE_EXTRA:
            raise
        sys.stderr.write(
            f"outbox: {missing} is not installed, or not whole; "
            "install the extra: pip install 'outbox-effects[consumer]'\n"
        )
        sys.exit(2)
    run()
