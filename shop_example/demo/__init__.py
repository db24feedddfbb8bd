"""``python -m shop_example demo``: orders, kills, a provider that misbehaves, and the count after.

``scenario`` tells the story; ``judge`` counts, from the orders table and the provider's own record.
"""

from __future__ import annotations


class DemoFailed(Exception):
    """The demo itself could not be carried out; the text is one line for a person."""
