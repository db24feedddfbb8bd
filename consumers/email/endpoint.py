"""Where a provider's API is, and whether the key may travel there."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

#: Names that public DNS never answers for (RFC 6761, RFC 6762, RFC 9476 and ICANN's .internal).
_PRIVATE_SUFFIXES = (".localhost", ".local", ".internal", ".test", ".alt")
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An API's base URL, without a slash at its end, and the host as people know it."""

    url: str
    scheme: str
    hostname: str
    port: int | None

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read a base URL.

        Plain http is for hosts that only a private network knows (loopback and private addresses,
        names without a dot such as a compose service's, .internal and the like): elsewhere it
        would show the API key to everyone on the way.

        Raises:
            ValueError: it is no such URL; says why, for a person, without repeating it.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ValueError("is no URL; it looks like https://api.resend.com") from None
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise ValueError("must begin with https:// (or http://) and name a host")
        if "@" in parts.netloc or "?" in url or "#" in url:
            raise ValueError("must hold no user, password, query or fragment")
        if not url.isascii() or any(c.isspace() or not c.isprintable() for c in url):
            raise ValueError("must be plain ASCII without spaces")
        endpoint = cls(url.rstrip("/"), parts.scheme, parts.hostname, port)
        if parts.scheme == "http" and not endpoint.is_private:
            raise ValueError("plain http would send the API key in the clear; use https://")
        return endpoint

    @property
    def host(self) -> str:
        """``host``, or ``host:port`` where the port isn't the scheme's own."""
        name = f"[{self.hostname}]" if ":" in self.hostname else self.hostname
        shown = self.port not in {None, _DEFAULT_PORTS[self.scheme]}
        return f"{name}:{self.port}" if shown else name

    @property
    def is_loopback(self) -> bool:
        """On this machine, surely."""
        if self.hostname == "localhost" or self.hostname.endswith(".localhost"):
            return True
        address = _ip_address(self.hostname)
        return address is not None and address.is_loopback

    @property
    def is_private(self) -> bool:
        """On this machine or a private network."""
        address = _ip_address(self.hostname)
        if address is not None:
            return address.is_private
        return "." not in self.hostname or self.hostname.endswith(_PRIVATE_SUFFIXES)


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
