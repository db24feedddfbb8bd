"""The shop's mail-service: a local e-mail provider that speaks Resend's protocol.

It runs as a process of its own, writes each accepted mail durably before it answers, records every
request, and misbehaves when told to. It delivers nothing. See docs/mail-service.md.
"""

from __future__ import annotations

from shop_example.mail_service.command import main
from shop_example.mail_service.record import RecordError, Tally, read_record

__all__ = ["RecordError", "Tally", "main", "read_record"]
