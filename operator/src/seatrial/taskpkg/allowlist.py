"""Entries of ``allowed_hosts``: host names, leading wildcards, addresses and networks. Source: harbor.md 3.8."""

from __future__ import annotations

import enum
import ipaddress
import re
from typing import Final, NamedTuple

_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


class HostKind(enum.StrEnum):
    HOST = "host"
    WILDCARD = "wildcard"
    """``*.example.com``: every name below, not the name itself."""
    ADDRESS = "address"
    NETWORK = "network"


class HostEntry(NamedTuple):
    text: str
    """Normal form: lower case, no trailing dots, compressed addresses."""
    kind: HostKind


def parse_host(entry: str) -> HostEntry:
    """Read one entry.

    Raises:
        ValueError: URLs, ports, paths, brackets, zones, inner wildcards, host bits in a network, bad labels, or nothing at all.
    """
    host = entry.strip().lower().rstrip(".")
    if not host:
        raise ValueError("an allowed host must not be empty")
    if "/" in host:
        return HostEntry(_network(host, entry), HostKind.NETWORK)
    if ":" in host:
        return HostEntry(_address6(host, entry), HostKind.ADDRESS)
    if host.startswith("*."):
        suffix = host[2:]
        if _is_address(suffix):
            raise ValueError(f"{entry!r}: a wildcard needs a host name, not an address")
        _check_labels(suffix, entry)
        return HostEntry(host, HostKind.WILDCARD)
    if "*" in host:
        raise ValueError(f"{entry!r}: a wildcard may only stand at the beginning, as in '*.example.com'")
    _check_labels(host, entry)
    return HostEntry(host, HostKind.ADDRESS if _is_address(host) else HostKind.HOST)


def _check_labels(host: str, entry: str) -> None:
    if not all(_LABEL.fullmatch(label) for label in host.split(".")):
        raise ValueError(f"{entry!r} is not a host name, an IP address or an IP network (no URLs, ports, paths or underscores)")


def _network(host: str, entry: str) -> str:
    try:
        if "%" in host:
            raise ValueError("zone")
        return ipaddress.ip_network(host, strict=True).compressed
    except ValueError as error:
        raise ValueError(f"{entry!r} is not an IP network (no URLs or paths; the host bits must be 0)") from error


def _address6(host: str, entry: str) -> str:
    try:
        if "%" in host:
            raise ValueError("zone")
        address = ipaddress.ip_address(host)
    except ValueError as error:
        raise ValueError(f"{entry!r} is not an IPv6 address (no URLs, ports or zones)") from error
    return address.compressed


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
