"""Which addresses a source may lead to. Decisions only; :mod:`.guard` resolves names and asks here.

The check is on the address that is connected to, so a name that means something else a moment later, decimal or octal
spellings of an address, and IPv4 addresses wrapped in IPv6 make no difference.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Services on these addresses hand out the machine's own credentials. Only an entry for exactly the address allows one.
METADATA = {
    ipaddress.ip_address(each)
    for each in (
        "169.254.169.254",  # most clouds
        "169.254.170.2",  # AWS container credentials
        "169.254.170.23",
        "168.63.129.16",  # Azure, although a public address
        "100.100.100.200",  # Alibaba
        "192.0.0.192",  # Oracle
        "fd00:ec2::254",
        "fd20:ce::254",
    )
}
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def embedded(address: Address) -> list[Address]:
    """The address itself and the IPv4 addresses that it carries (mapped, compatible, 6to4, Teredo, NAT64)."""
    found: list[Address] = [address]
    if isinstance(address, ipaddress.IPv6Address):
        inner: list[ipaddress.IPv4Address | None] = [address.ipv4_mapped, address.sixtofour]
        if address.teredo is not None:
            inner.extend(address.teredo)
        if address in _NAT64 or (int(address) >> 32 == 0 and int(address) > 1):
            inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        found.extend(each for each in inner if each is not None)
    return found


def refusal(text: str, allowed: Sequence[Network]) -> str | None:
    """Why a connection to this address is refused, in words that follow "it is"; None when it may be made."""
    address = ipaddress.ip_address(text.partition("%")[0])  # without the IPv6 zone
    for each in embedded(address):
        reason = _reason(each)
        if reason is None:
            continue
        exact = {each, address}
        if any(network.num_addresses == 1 and network.network_address in exact for network in allowed):
            continue
        if each not in METADATA and any(_inside(one, network) for one in exact for network in allowed):
            continue
        return reason
    return None


def _inside(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _reason(address: Address) -> str | None:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return None  # judged by the IPv4 address inside
    if address in METADATA:
        return "a cloud's metadata service"
    for name, is_so in (
        ("loopback", address.is_loopback),
        ("link-local", address.is_link_local),
        ("unspecified", address.is_unspecified),
        ("multicast", address.is_multicast),
        ("private", address.is_private),
    ):
        if is_so:
            return f"a {name} address" if name[0] not in "u" else "the unspecified address"
    return None if address.is_global else "not a public address"
