"""Names, addresses and interfaces of this machine and of the one where rank 0 is."""

import socket
import time
from ipaddress import ip_address

import psutil

_RETRY_SECONDS = 1


def resolve(name: str, *, seconds: float) -> str | None:
    """The address that `name` has here; None when it has none, even `seconds` from now.

    A cluster may give the first machine its name a little after the others have started.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)[0][4][0]
        except OSError:
            if time.monotonic() > deadline:
                return None
            time.sleep(min(_RETRY_SECONDS, seconds))


def own_address(target: str) -> str | None:
    """The address of this machine that packets to the address `target` leave from; None when there
    is no way to it. Nothing is sent."""
    family = socket.AF_INET6 if ip_address(target).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))  # any port: UDP only looks up the route
        except OSError:
            return None
        return probe.getsockname()[0]


def interface_of(address: str) -> str | None:
    """Name of the network interface with `address`; None when no interface has it."""
    for name, entries in psutil.net_if_addrs().items():
        # Link-local addresses come as `fe80::1%eth0`.
        if address in (entry.address.partition("%")[0] for entry in entries):
            return name
    return None
