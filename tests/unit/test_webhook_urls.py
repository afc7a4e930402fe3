"""Where webhooks may go: every way to write an address on this side is refused, unless a setting allows it."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.errors import ConfigError, WebhookRefused
from samovar_storage.jobs.webhook_urls import Allowed, check_url, parse_allow

NOTHING = Allowed()

REFUSED = [
    "ftp://example.com/",
    "example.com/hook",
    "http:///path",
    "http://example.com:0/",
    "http://example.com:99999/",
    "http://user:pass@example.com/",
    "http://user@example.com/",
    "http://exa mple.com/",
    "http://example.com\\@127.0.0.1/",
    "http://example.com/\n",
    "http://exämple.com/",
    "http://localhost/",
    "http://LOCALHOST:8080/",
    "http://localhost./",
    "http://a.localhost/",
    "http://127.0.0.1/",
    "http://127.1.2.3:8080/x",
    "http://0.0.0.0/",
    "http://10.1.2.3/",
    "http://172.16.0.1/",
    "http://192.168.1.1/",
    "http://169.254.169.254/latest/meta-data",
    "http://100.100.100.200/",
    "http://168.63.129.16/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    "http://240.0.0.1/",
    "http://[::1]/",
    "http://[::]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:a00:1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://[::127.0.0.1]/",
    "http://[fe80::1]/",
    "http://[::ffff:0:7f00:1]/",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0177.0.0.01/",
    "http://0/",
    "http://[fe80::1%25eth0]/",
    "http://[fc00::1]/",
    "http://[fd00:ec2::254]/",
    "http://[ff02::1]/",
    "http://[2001:db8::1]/",
    "http://[2001:0:1::1]/",
    "http://[64:ff9b:1::1]/",
    "http://[fec0::1]/",
    "http://[3fff::1]/",
    "http://[5f00::1]/",
    "http://" + "a" * 2000 + ".com/",
]
ADMITTED = [
    "https://example.com/hook?x=1",
    "http://example.com:8443/",
    "https://EXAMPLE.com",
    "http://93.184.216.34/",
    "http://[2606:4700::1111]/",
    "http://[64:ff9b::808:808]/",
]


@pytest.mark.parametrize("url", REFUSED)
def test_refused(url: str) -> None:
    with pytest.raises(WebhookRefused):
        check_url(url, NOTHING)


@pytest.mark.parametrize("url", ADMITTED)
def test_admitted(url: str) -> None:
    check_url(url, NOTHING)


@pytest.mark.parametrize(
    ("allow", "url"),
    [
        ("127.0.0.0/8", "http://127.0.0.1:8080/"),
        ("127.0.0.0/8", "http://localhost/"),
        ("127.0.0.0/8", "http://[::ffff:127.0.0.1]/"),
        ("10.0.0.0/8, hooks.internal", "http://10.1.1.1/"),
        ("hooks.internal", "http://HOOKS.internal./"),
        ("localhost", "http://localhost/"),
        ("fd00::/8", "http://[fd00::1]/"),
        ("::1", "http://[::1]:8080/"),
    ],
)
def test_a_setting_allows_more(allow: str, url: str) -> None:
    check_url(url, parse_allow(allow))


def test_an_allowed_host_may_be_anywhere_and_no_other_may() -> None:
    allowed = parse_allow("hooks.internal")
    assert allowed.permits("hooks.internal", "10.0.0.1")
    assert not allowed.permits("other.internal", "10.0.0.1")
    assert not allowed.permits("other.internal", "no address")


@pytest.mark.parametrize("text", ["10.0.0.1/8", "not a host", "http://x"])
def test_a_bad_setting_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="webhook_allow"):
        parse_allow(text)


PRIVATE = [
    ip_network(text) for text in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16")
]


@given(st.sampled_from(PRIVATE), st.integers(0, 2**32 - 1), st.sampled_from(["{}", "::ffff:{}", "64:ff9b::{}"]))
def test_no_private_address_is_permitted_however_it_is_wrapped(net: object, number: int, form: str) -> None:
    assert hasattr(net, "num_addresses")
    address = net[number % net.num_addresses]  # type: ignore[index]
    assert not NOTHING.permits("example.com", form.format(address))


@given(st.text(max_size=60))
def test_anything_is_admitted_or_refused(text: str) -> None:
    for url in (text, "http://" + text):
        try:
            check_url(url, NOTHING)
        except WebhookRefused as error:
            assert error.detail
