"""Answers as bytes, whole or spoilt."""

from __future__ import annotations

import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from shop_example.mail_service.answer import Answer

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_OVERSTATED_BYTES = 64


def head_of(answer: Answer, *, close: bool, overstated_bytes: int = 0) -> bytes:
    """Status line and headers, up to and with the empty line."""
    lines = [
        b"HTTP/1.1 %d %b" % (answer.status, _reason(answer.status)),
        b"date: " + _date(int(time.time())),
        b"content-type: " + answer.content_type,
        b"content-length: %d" % (len(answer.body) + overstated_bytes),
        *(b"%b: %b" % header for header in answer.headers),
    ]
    if close:
        lines.append(b"connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def whole(answer: Answer, *, close: bool, without_body: bool = False) -> bytes:
    """An answer as it should be; ``without_body`` for HEAD."""
    head = head_of(answer, close=close)
    return head if without_body else head + answer.body


def truncated(answer: Answer) -> bytes:
    """An answer that announces more body than it has."""
    return head_of(answer, close=True, overstated_bytes=_OVERSTATED_BYTES) + answer.body


def half(answer: Answer) -> bytes:
    """An answer up to the middle of its body."""
    return head_of(answer, close=True) + answer.body[: len(answer.body) // 2]


@lru_cache
def _reason(status: int) -> bytes:
    return HTTPStatus(status).phrase.encode()


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()
