"""The command line of ``email-consumer``."""

from __future__ import annotations

from typing import Annotated

import typer

from consumers.email import logs
from consumers.email.start import Run, run
from outbox.errors import ConfigurationError, OutboxError

cli = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Send the e-mails of an outbox.",
)


@cli.callback()
def _root() -> None:
    """Send the e-mails of an outbox."""


@cli.command("run")
def run_command(
    app: Annotated[
        str | None, typer.Option(metavar="MODULE:NAME", help="The Emails to serve (EMAIL_APP).")
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="End once nothing that it serves is left to do.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Give up after so long: exit 1.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Calls at a time (EMAIL_CONCURRENCY).")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Log more than OUTBOX_LOG_LEVEL says.")
    ] = False,
) -> None:
    """Claim e-mail jobs and send each once, until stopped (SIGTERM lets calls in flight end).

    Settings come from the environment or .env; those of OUTBOX_* and EMAIL_* are in the README.
    """
    try:
        logs.set_up(verbose=verbose)
        code = run(Run(app, concurrency, drain, timeout))
    except OutboxError as error:
        typer.echo(f"email-consumer: {error}", err=True)
        code = 2 if isinstance(error, ConfigurationError) else 1
    raise typer.Exit(code)
