"""Loopback addresses: only this machine reaches them."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``, an address or a name."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
