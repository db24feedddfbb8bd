"""``python -m shop_example``."""

from __future__ import annotations

import sys

try:
    from shop_example.commands import main
except ModuleNotFoundError as missing:
    sys.stderr.write(f"shop: {missing.name} is not installed; run: pip install -e '.[shop]'\n")
    raise SystemExit(2) from None

raise SystemExit(main())
