"""The ``email-consumer`` command: exit code 0 fine, 1 failed or the answer is no, 2 wrong use."""

from __future__ import annotations

import sys
from typing import Final

#: What the extra ``consumer`` brings; anything else that is missing is a fault of its own.
_OF_THE_EXTRA: Final = frozenset({
    "aiohappyeyeballs", "h11", "httpx", "jinja2", "psycopg", "pydantic", "pydantic_settings",
    "rich", "typer",
})  # fmt: skip


def main() -> None:
    """Run the command; never returns."""
    try:
        from consumers.email.cli import cli
    except ImportError as error:
        # psycopg without libpq raises an ImportError without a name.
        missing = (error.name or "psycopg").partition(".")[0]
        if missing not in _OF_THE_EXTRA:
            raise
        sys.stderr.write(
            f"email-consumer: {missing} is not installed, or not whole; "
            "install the extra: pip install 'outbox-effects[consumer]'\n"
        )
        sys.exit(2)
    cli()


if __name__ == "__main__":
    main()
