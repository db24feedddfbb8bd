"""The ``mail-service`` command: options, one ready line, a graceful stop."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import signal
import sys
from pathlib import Path

from shop_example.mail_service.fault_plan import rates_from_text
from shop_example.mail_service.faults import FAULTS, FaultError
from shop_example.mail_service.record import RecordError
from shop_example.mail_service.server import MailServer
from shop_example.mail_service.settings import (
    DEFAULT_KEY_WINDOW_SECONDS,
    DEFAULT_PORT,
    Settings,
    default_record,
)

API_KEY_VARIABLE = "MAIL_SERVICE_API_KEY"


def main(argv: list[str] | None = None) -> int:
    """Runs a mail-service until SIGTERM or SIGINT.

    Exit code: 0 after a stop, 1 when it can't start or can't write its record, 2 for wrong use.
    """
    options = _parser().parse_args(argv)
    settings = _settings(options)
    try:
        asyncio.run(_run(settings, as_json=options.json))
    except RecordError as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(f"can't listen on {settings.host}, port {settings.port}: {error.strerror}")
    return 0


async def _run(settings: Settings, *, as_json: bool) -> None:
    stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    async with MailServer(settings) as server:
        _announce(server.url, settings.record, as_json=as_json)
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait((stopped, server.failed), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
    if server.failed.done():
        server.failed.result()


def _announce(url: str, record: Path, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"url": url, "record": str(record)}) + "\n")
    else:
        sys.stdout.write(f"mail-service listening on {url}\n")
        sys.stderr.write(f"mail-service records to {record}\n")
    sys.stdout.flush()


def _settings(options: argparse.Namespace) -> Settings:
    return Settings(
        record=options.record,
        host=options.host,
        port=options.port,
        keeps_keys=not options.no_keys,
        key_window_seconds=options.key_window_seconds,
        api_key=options.api_key or os.environ.get(API_KEY_VARIABLE) or None,
        rates=options.faults,
        seed=options.seed,
        latency_seconds=options.latency_ms / 1000,
        rate_limit=options.rate_limit,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mail-service",
        description="A local e-mail provider that speaks Resend's POST /emails, keeps a durable "
        "record of every request, and misbehaves when told to. It delivers nothing.",
        epilog=f"Faults: {', '.join(FAULTS)}. See docs/mail-service.md.",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    add("--port", type=_port, default=DEFAULT_PORT, help=f"0: any free (default: {DEFAULT_PORT})")
    add(
        "--record", type=Path, metavar="FILE", default=default_record(), help="default: %(default)s"
    )
    add("--no-keys", action="store_true", help="keep no keys: each request is a new mail")
    add(
        "--key-window-seconds",
        type=_seconds,
        metavar="S",
        default=DEFAULT_KEY_WINDOW_SECONDS,
        help="how long keys are kept (default: a day)",
    )
    add("--api-key", help=f"the only key let in, or {API_KEY_VARIABLE} (default: any)")
    add("--faults", type=_rates, metavar="RATES", default={}, help="as in 503=0.05,stall=0.01")
    add("--seed", type=int, default=0, help="of the dice for faults (default: 0)")
    add("--latency-ms", type=_seconds, metavar="MS", default=0.0, help="before each acceptance")
    add("--rate-limit", type=_rate, metavar="N/s", help="answer 429 to more requests a second")
    add("--json", action="store_true", help="print the ready line as JSON")
    return parser


def _port(text: str) -> int:
    port = _number(text, "a port number from 0 to 65535")
    if not (port.is_integer() and 0 <= port <= 65_535):
        raise argparse.ArgumentTypeError(f"{text!r}: give a port number from 0 to 65535")
    return int(port)


def _seconds(text: str) -> float:
    value = _number(text, "a number from 0 on")
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number from 0 on")
    return value


def _rate(text: str) -> int:
    wanted = "a whole number of requests a second, as in 5/s"
    value = _number(text.removesuffix("/s"), wanted)
    if not (value.is_integer() and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r}: give {wanted}")
    return int(value)


def _rates(text: str) -> dict[str, float]:
    try:
        return rates_from_text(text)
    except FaultError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _number(text: str, wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r}: give {wanted}")
    return value


def _complain(problem: str) -> int:
    sys.stderr.write(f"mail-service: {problem}\n")
    return 1
