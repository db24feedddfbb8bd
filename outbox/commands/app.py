"""The command line of ``outbox``: what each word stands for."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from outbox import __version__
from outbox.commands import cancel, effects, jobs, retry, upkeep

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outbox-effects {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """Look after an outbox: its schema, its jobs, and its ledger of effects.

    The database is the one of OUTBOX_DATABASE_URL (environment or .env), else an embedded
    PostgreSQL that all commands share. Exit codes: 0 fine, 1 the answer is no or it failed, 2 wrong
    use or settings.
    """


app.command("migrate")(upkeep.migrate_command)
app.command("status")(upkeep.status_command)
app.command("doctor")(upkeep.doctor_command)
app.add_typer(jobs.jobs, name="jobs")
app.add_typer(effects.effects, name="effects")
app.command("retry")(retry.retry_command)
app.command("cancel")(cancel.cancel_command)
app.command("prune")(upkeep.prune_command)


def run() -> None:
    """Run the command; never returns."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that can't show a character gets its number instead of a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()
