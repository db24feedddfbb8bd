"""Where an API is: what is taken for private, and where the key may travel in the clear."""

from __future__ import annotations

import pytest

from consumers.email.endpoint import Endpoint


@pytest.mark.parametrize(
    ("url", "base", "host"),
    [
        ("https://api.resend.com", "https://api.resend.com", "api.resend.com"),
        ("https://API.resend.com:443/", "https://API.resend.com:443", "api.resend.com"),
        ("https://mail.example:8443/v1/", "https://mail.example:8443/v1", "mail.example:8443"),
        ("http://127.0.0.1:8025", "http://127.0.0.1:8025", "127.0.0.1:8025"),
        ("http://[::1]:8025/", "http://[::1]:8025", "[::1]:8025"),
        ("http://localhost", "http://localhost", "localhost"),
    ],
)
def test_a_base_url_is_read(url: str, base: str, host: str) -> None:
    """With or without port, path and final slash."""
    endpoint = Endpoint.parse(url)
    assert (endpoint.url, endpoint.host) == (base, host)


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://localhost:1", True),
        ("http://mail.localhost", True),
        ("http://127.0.0.1", True),
        ("http://127.9.9.9", True),
        ("http://[::1]", True),
        ("http://mail-service:8025", False),
        ("http://10.0.0.7", False),
        ("http://192.168.1.1", False),
        ("http://[fd00::1]", False),
        ("http://mail.shop.svc.cluster.local", False),
        ("http://mail.internal", False),
        ("https://localhost.example.com", False),
        ("https://api.resend.com", False),
    ],
)
def test_hosts_that_only_a_private_network_knows_may_speak_plain_http(
    url: str, *, loopback: bool
) -> None:
    """Loopback is a part of them."""
    assert Endpoint.parse(url).is_loopback is loopback


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://api.resend.com", "in the clear"),
        ("http://8.8.8.8", "in the clear"),
        ("http://localhost.example.com", "in the clear"),
        ("ftp://localhost", "https://"),
        ("api.resend.com", "https://"),
        ("https://", "name a host"),
        ("https:///emails", "name a host"),
        ("https://user:secret@api.resend.com", "no user"),
        ("https://api.resend.com?key=secret", "no user"),
        ("https://api.resend.com?", "no user"),
        ("https://api.resend.com#x", "no user"),
        ("https://api.resend.com:99999", "is no URL"),
        ("https://api.resend.com:x", "is no URL"),
        ("https://[::1", "is no URL"),
        ("https://api.resend.com/a b", "plain ASCII"),
        ("https://bücher.example", "plain ASCII"),
    ],
)
def test_other_urls_are_refused_without_repeating_them(url: str, problem: str) -> None:
    """They may hold a secret."""
    with pytest.raises(ValueError, match=problem) as caught:
        Endpoint.parse(url)
    assert "secret" not in str(caught.value)
