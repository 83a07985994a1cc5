"""Addresses, kinds of links, and routes, from the kernel through pyroute2 (in the helper process: its calls block)."""

from __future__ import annotations

import socket
from typing import Any

import msgspec
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError


class LinkFacts(msgspec.Struct):
    kind: str | None = None
    addresses: list[str] = []


class RouteFacts(msgspec.Struct):
    """``default`` is the default route's interface; ``toward`` has the interface and own address used to reach each peer."""

    default: str | None = None
    toward: dict[str, list[str]] = {}


class NetlinkFacts(msgspec.Struct):
    links: dict[str, LinkFacts] = {}
    routes: RouteFacts = msgspec.field(default_factory=RouteFacts)


def read(peers: list[str]) -> NetlinkFacts:
    """Everything about links and routes; ``peers`` are IP addresses whose routes are wanted.

    A kernel that refuses netlink (a sandbox) gives empty facts.
    """
    facts = NetlinkFacts()
    try:
        with IPRoute() as ip:
            _read(ip, peers, facts)
    except (OSError, NetlinkError):
        return facts
    return facts


def _read(ip: Any, peers: list[str], facts: NetlinkFacts) -> None:
    names: dict[int, str] = {}
    for link in ip.get_links():
        name = link.get_attr("IFLA_IFNAME")
        names[link["index"]] = name
        info = link.get_attr("IFLA_LINKINFO")
        facts.links[name] = LinkFacts(kind=None if info is None else info.get_attr("IFLA_INFO_KIND"))
    for address in ip.get_addr():
        name = names.get(address["index"])
        text = address.get_attr("IFA_LOCAL") or address.get_attr("IFA_ADDRESS")
        if name in facts.links and text:
            facts.links[name].addresses.append(f"{text}/{address['prefixlen']}")
    best: int | None = None
    for route in ip.get_routes(family=socket.AF_INET):
        if route["dst_len"] or route.get_attr("RTA_TABLE") != 254 or route.get_attr("RTA_OIF") is None:
            continue
        metric = route.get_attr("RTA_PRIORITY") or 0
        if best is None or metric < best:
            best, facts.routes.default = metric, names.get(route.get_attr("RTA_OIF"))
    for peer in peers:
        answer = _route(ip, peer)
        if answer is not None and answer[0] in names:
            facts.routes.toward[peer] = [names[answer[0]], answer[1] or ""]


def _route(ip: Any, peer: str) -> tuple[int, str | None] | None:
    try:
        for route in ip.route("get", dst=peer):
            found = route.get_attr("RTA_OIF")
            if found is not None:
                return found, route.get_attr("RTA_PREFSRC")
    except NetlinkError:
        return None
    return None
