"""Where webhooks may be sent: which URLs, which addresses. Nothing on this side of the network is reached by them.

`check_url` is for when a job is submitted: it knows the URL only. `Allowed.permits` is for each address that a host
resolved to, right before it is connected to. This module does not know DNS, sockets or HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from samovar.errors import ConfigError, WebhookRefused

WebhookAllow = Annotated[
    str,
    Meta(
        description="Private networks (CIDR) and hosts that webhooks may be sent to all the same, separated by commas"
    ),
]
MAX_URL_CHARS = 2000
# resolvers read 127.1, 0x7f000001 and 017700000001 as addresses, and no name on the internet ends like that
_NUMBER = re.compile(r"^(\d+|0x[0-9a-f]*)\Z", re.ASCII)

_Address = IPv4Address | IPv6Address
_NAT64 = ip_network("64:ff9b::/96")
_6TO4 = ip_network("2002::/16")
_GLOBAL_V6 = ip_network("2000::/3")  # all of IPv6 that is handed out to hosts of the internet
# global by the registries, yet not for webhooks
_REFUSED = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "100.64.0.0/10",  # carriers' NAT; some clouds' metadata
        "168.63.129.16/32",  # the host of a machine at Azure
        "192.0.0.0/24",
        "192.88.99.0/24",
        "2001::/23",  # Teredo, ORCHID and what else wraps addresses
        "3fff::/20",  # documentation
    )
)


class Allowed(Struct, frozen=True):
    """What is allowed beside the public internet: whole networks, and hosts wherever they are."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    hosts: frozenset[str] = frozenset()

    def permits(self, host: str, address: str) -> bool:
        """Return whether `host`, as the URL has it, may be connected to at `address`, an IP it resolved to."""
        if _plain(host) in self.hosts:
            return True
        try:
            found = _unwrapped(ip_address(address))
        except ValueError:
            return False
        return is_public(found) or any(found in net for net in self.networks if net.version == found.version)


def parse_allow(text: str) -> Allowed:
    """Return what the setting says: networks in CIDR form, addresses and host names, separated by commas.

    Raises: ConfigError naming the part that is neither.
    """
    networks, hosts = [], set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ip_network(part))
        except ValueError as error:
            if "/" in part or not _plain(part).replace("-", "").replace(".", "").isalnum():
                raise ConfigError(f"webhook_allow: {part!r} is neither a network nor a host: {error}") from error
            hosts.add(_plain(part))
    return Allowed(tuple(networks), frozenset(hosts))


def is_public(address: _Address) -> bool:
    """Return whether an address, free of wrappings, is one of the public internet and belongs to a single host."""
    if address.is_multicast or address.is_link_local or not address.is_global:
        return False
    if isinstance(address, IPv6Address) and address not in _GLOBAL_V6:
        return False
    return not any(address in net for net in _REFUSED if net.version == address.version)


def check_url(url: str, allowed: Allowed) -> None:
    """Return if `url` may be a webhook, as far as can be told without asking where its host is.

    Raises: WebhookRefused saying what is wrong with it.
    """
    if len(url) > MAX_URL_CHARS or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise WebhookRefused(f"a webhook's URL has at most {MAX_URL_CHARS} printable ASCII characters and no blanks")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise WebhookRefused(f"the webhook is no URL: {error}") from error
    if parts.scheme not in ("http", "https"):
        raise WebhookRefused("a webhook's URL begins with https:// or http://")
    if "@" in parts.netloc:
        raise WebhookRefused("a webhook's URL carries no user or password: check its signature instead")
    if not parts.hostname or port == 0:
        raise WebhookRefused("the webhook's URL names no host, or port 0")
    if "%" in parts.netloc:
        raise WebhookRefused("a webhook's host carries no % signs or zones")
    _check_host(parts.hostname, allowed)


def refusal(host: str, addresses: Sequence[str]) -> WebhookRefused:
    """Return the error for a host that leads where webhooks may not go; it does not tell where that is."""
    where = "it has no address" if not addresses else "it is, or leads to, a private, local or reserved address"
    return WebhookRefused(f"webhooks are not sent to {host}: {where}; webhook_allow could permit it")


def _check_host(host: str, allowed: Allowed) -> None:
    """Refuse the literal addresses and names that are known to be on this side."""
    name = _plain(host)
    if name in allowed.hosts:
        return
    if name == "localhost" or name.endswith(".localhost"):
        if not allowed.permits(host, "127.0.0.1"):
            raise refusal(host, [host])
        return
    try:
        ip_address(name)
    except ValueError:
        if _NUMBER.match(name.rpartition(".")[2]):
            raise WebhookRefused(f"the webhook's host {host} ends in a number: write addresses out") from None
        return
    if not allowed.permits(host, name):
        raise refusal(host, [name])


def _plain(host: str) -> str:
    return host.lower().strip("[]").rstrip(".")


def _unwrapped(address: _Address) -> _Address:
    """Return the IPv4 address that an IPv6 one stands for, else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64 or 1 < int(address) < 1 << 32:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _6TO4:
        return IPv4Address(int(address) >> 80 & 0xFFFFFFFF)
    return address
