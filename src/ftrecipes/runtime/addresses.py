"""Names, addresses and interfaces of this machine and of the one where rank 0 is."""

import socket
import struct
import sys
import time
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

_RETRY_SECONDS = 1
_SIOCGIFADDR = 0x8915  # <linux/sockios.h>: the IPv4 address of an interface


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
    """Name of the interface with `address`; None when that can not be told (only Linux says it)."""
    if sys.platform != "linux":
        return None
    wanted = ip_address(address).packed
    if len(wanted) == 16:
        return _ipv6_interfaces().get(wanted)
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if _ipv4_address(name) == wanted), None)


def _ipv4_address(interface: str) -> bytes | None:
    """The main IPv4 address of an interface, packed."""
    import fcntl  # not everywhere

    request = struct.pack("256s", interface.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        # struct ifreq: 16 bytes of name, then a sockaddr_in, whose address is at 4.
        return fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24]
    return None


def _ipv6_interfaces() -> dict[bytes, str]:
    """Packed IPv6 address -> interface. The kernel's table: address, four numbers, name."""
    table = Path("/proc/net/if_inet6")
    lines = table.read_text().splitlines() if table.exists() else []
    return {bytes.fromhex(line.split()[0]): line.split()[-1] for line in lines}
