"""Two hosts on one machine: network namespaces joined by a cable, process ids and names of their
own. Needs root, iproute2 and util-linux."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
INTERFACE = "cable"


@dataclass(frozen=True)
class Host:
    """A namespace and the address that the other host knows it by."""

    name: str
    namespace: str
    address: str

    def start(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen:
        """Run `command` there; killed with SIGKILL, it takes all it has started with it."""
        inside = f"hostname {self.name} && exec {shlex.join(command)}"
        with open(log, "w", encoding="utf-8") as output:
            return subprocess.Popen(
                [
                    *("ip", "netns", "exec", self.namespace),
                    *("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"),
                    *("sh", "-c", inside),
                ],
                env=os.environ | environment | {"GLOO_SOCKET_IFNAME": INTERFACE},
                stdout=output,
                stderr=output,
                cwd=ROOT,
            )

    def unplug(self) -> None:
        """Take the cable out: nothing arrives any more, not even that connections are closed."""
        _ip("-n", self.namespace, "link", "set", INTERFACE, "down")


def can_make() -> bool:
    """Whether this machine lets us make hosts."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "hostname"))):
        return False
    name = f"probe{uuid.uuid4().hex[:6]}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return False
    inside = ["ip", "netns", "exec", name, "unshare", "--uts", "--pid", "--fork", "--mount-proc"]
    works = subprocess.run([*inside, "true"], capture_output=True).returncode == 0
    _ip("netns", "del", name)
    return works


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Hosts `first` (10.99.0.1) and `second` (10.99.0.2) while the body runs."""
    tag = uuid.uuid4().hex[:6]
    hosts = tuple(
        Host(name, f"{name}{tag}", f"10.99.0.{number}")
        for number, name in enumerate(("first", "second"), start=1)
    )
    try:
        for host in hosts:
            _ip("netns", "add", host.namespace)
        first, second = hosts
        _ip(
            *("link", "add", INTERFACE, "netns", first.namespace, "type", "veth"),
            *("peer", "name", INTERFACE, "netns", second.namespace),
        )
        for host in hosts:
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", INTERFACE)
            _ip("-n", host.namespace, "link", "set", INTERFACE, "up")
            _ip("-n", host.namespace, "link", "set", "lo", "up")
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True)


def torchrun(
    hosts: Sequence[Host], number: int, script: Sequence[str], *, port: int = 29500
) -> list[str]:
    """The command that starts one process of `script` on host `number`; the first one leads."""
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", str(len(hosts)), "--nproc-per-node", "1"),
        *("--rdzv-backend", "c10d", "--rdzv-id", "job"),
        *("--rdzv-endpoint", f"{hosts[0].address}:{port}"),
        *("--rdzv-conf", f"is_host={int(number == 0)}", "--local-addr", hosts[number].address),
        *script,
    ]


def kill(process: subprocess.Popen) -> None:
    """A power cut of everything that `process` has started."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
