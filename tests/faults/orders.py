"""Orders for the fault tests: a payload as the shop writes it."""

from __future__ import annotations

from typing import Any


def payload(email: str = "jane@example.com", order_id: int = 1) -> dict[str, Any]:
    """What ``shop_example.orders.confirmation`` writes for an order of one line."""
    return {
        "order_id": order_id,
        "placed_at": "2026-03-01T12:00:00+00:00",
        "customer": {"name": "Jane", "email": email},
        "lines": [
            {"product": "Teapot", "quantity": 1, "unit_price": "12.00", "total": "12.00"},
        ],
        "total": "12.00",
        "currency": "EUR",
    }
