"""``python -m outbox`` is the ``outbox`` command."""

from __future__ import annotations

from outbox.commands import main

main()
