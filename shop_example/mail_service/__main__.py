"""``python -m shop_example.mail_service``."""

from __future__ import annotations

from shop_example.mail_service.command import main

raise SystemExit(main())
