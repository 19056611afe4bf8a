"""How processes meet, and what is said when they can not. Here the ranks are threads."""

import os
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from ftrecipes.config.errors import ConfigError
from ftrecipes.runtime import rendezvous
from ftrecipes.runtime.ranks import Ranks
from ftrecipes.runtime.rendezvous import meet

ALONE_OF_TWO = Ranks(0, 2, 0, 2)
OTHER_OF_TWO = Ranks(1, 2, 1, 2)


@pytest.fixture
def port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def master(monkeypatch, port):
    """Set MASTER_ADDR, MASTER_PORT and others, with little patience."""
    for name in ("GROUP_RANK", "GLOO_SOCKET_IFNAME", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.setenv(name, "")  # so that what is set meanwhile is gone afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(rendezvous, "MASTER_SECONDS", 0.5)

    def setup(**changed: str | None) -> None:
        usual = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        for name, value in (usual | changed).items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    setup()
    return setup


def meet_all(*everyone: tuple[Ranks, str]) -> list:
    """What `meet` gives to, or raises in, each of these (ranks, host)."""

    def one(place: tuple[Ranks, str]) -> object:
        try:
            return meet(*place, seconds=1)
        except ConfigError as error:
            return str(error)

    with ThreadPoolExecutor(len(everyone)) as threads:
        return list(threads.map(one, everyone))


def refusal(ranks: Ranks) -> str:
    """The message to a rank that comes alone."""
    with pytest.raises(ConfigError) as caught:
        meet(ranks, "b", seconds=0.2)
    return str(caught.value)


def test_one_process_meets_nobody(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    store, _ = meet(Ranks(0, 1, 0, 1), "a", seconds=1)
    store.set("key", "value")
    assert store.get("key") == b"value"


def test_ranks_share_a_store_and_machines_are_told_by_host(master):
    found = meet_all((Ranks(0, 3, 0, 3), "a"), (Ranks(1, 3, 1, 3), "a"), (Ranks(2, 3, 2, 3), "a"))
    assert [machine for _, machine in found] == ["a", "a", "a"]
    found[0][0].set("key", "value")
    assert found[2][0].get("key") == b"value"


def test_torchruns_agent_may_keep_the_store(master, port, monkeypatch):
    """Then no rank opens the port, which is the agent's; a restarted run starts anew."""
    agent = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    master(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    both = (ALONE_OF_TWO, "a"), (OTHER_OF_TWO, "a")
    first = meet_all(*both)
    first[0][0].set("key", "of the first attempt")
    assert first[1][0].check(["key"])
    master(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="1")
    second = meet_all(*both)
    assert not second[0][0].check(["key"])
    agent.set("still", "here")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"MASTER_ADDR": None}, "MASTER_ADDR is missing"),
        ({"MASTER_PORT": None}, "MASTER_PORT is missing"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is wrong\n  got: http"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT is wrong\n  got: 65536"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT is wrong\n  got: 0"),
        ({"MASTER_ADDR": "no.invalid"}, "a name that host b knows no address of\n  got: no.inv"),
    ],
)
def test_an_address_that_can_not_be_used(master, changed, message):
    master(**changed)
    assert message in refusal(ALONE_OF_TWO)


def test_a_port_in_use_is_told_by_the_rank_that_would_open_it(master, port):
    with socket.socket() as other:
        other.bind(("", port))
        other.listen()
        assert f"the port {port} is in use on host b" in refusal(ALONE_OF_TWO)


def test_a_machine_that_is_not_reached_is_named(master, port, monkeypatch):
    """Not later than is said, although torch tries again by itself."""
    monkeypatch.setattr(rendezvous, "MASTER_SECONDS", 3)
    began = time.monotonic()
    message = refusal(OTHER_OF_TWO)
    assert time.monotonic() - began < 3.5
    assert f"rank 1 on host b did not reach rank 0's machine at 127.0.0.1:{port} within" in message
    assert "firewall" in message


def test_ranks_that_do_not_come_are_named(master, port):
    message = refusal(Ranks(0, 4, 0, 4))
    assert f"not all processes came to 127.0.0.1:{port} within 0.2 seconds" in message
    assert "nothing from rank 1, 2, 3 of 4" in message


def test_a_store_that_goes_away_is_told(master, port):
    """As when rank 0 failed by itself: what it said matters."""

    class Broken(dist.TCPStore):
        def check(self, keys):
            raise dist.DistNetworkError("connection reset by peer")

    store = Broken("127.0.0.1", port, is_master=True, wait_for_workers=False)
    place = rendezvous.Place("a", 0, 2, "")
    with pytest.raises(ConfigError, match=r"lost the connection to there while .*\n  got: connect"):
        rendezvous._gather(store, place, ALONE_OF_TWO, "there", seconds=1)


def test_a_rank_comes_once(master, port):
    keeper = dist.TCPStore("127.0.0.1", port, is_master=True, timeout=timedelta(seconds=5))
    place = rendezvous.Place("a", 0, 1, "")
    only = Ranks(0, 1, 0, 1)
    rendezvous._gather(keeper, place, only, "there", seconds=1)
    with pytest.raises(ConfigError, match="two processes say that they are rank 0"):
        rendezvous._gather(keeper, place, only, "there", seconds=1)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_loopback_address_is_refused_for_several_machines(master, name, rank):
    """On every rank: nobody could be reached by it."""
    master(MASTER_ADDR=name)
    message = refusal(Ranks(rank, 2, 0, 1))
    assert "MASTER_ADDR leads every machine to itself" in message
    assert re.search(rf"got: {name}, which is \S+ on host b \(rank {rank}\)", message)


def test_the_first_machine_may_know_itself_by_a_loopback_address(master, monkeypatch):
    """As Debian writes it into /etc/hosts; elsewhere the same answer is a mistake."""
    master(MASTER_ADDR="head")
    monkeypatch.setattr(rendezvous, "resolve", lambda name, seconds: "127.0.1.1")
    assert "MASTER_ADDR leads every machine to itself" in refusal(Ranks(2, 4, 0, 2))
    message = refusal(Ranks(1, 4, 1, 2))
    assert "rank 1 on host b did not reach" in message


def test_processes_that_contradict_each_other_are_refused(master, monkeypatch):
    """Two processes of one machine, or two machines of one name, without the rest by hand."""
    monkeypatch.setattr(rendezvous, "_check_loopback", lambda *where: None)
    # The second one may find the store of the first gone.
    message = meet_all((Ranks(0, 2, 0, 1), "a"), (Ranks(1, 2, 0, 1), "a"))[0]
    assert "the processes of machine a contradict each other" in message
    assert "got: rank 0 is 0 of 1, rank 1 is 0 of 1" in message


def test_gloo_takes_the_interface_by_which_machines_reach_each_other(master, monkeypatch):
    monkeypatch.setattr(rendezvous, "interface_of", {"10.0.0.1": "eth1", "10.0.0.2": "eth2"}.get)
    routes = {"10.0.0.2": "10.0.0.1", "10.0.0.1": "10.0.0.2"}
    monkeypatch.setattr(rendezvous, "own_address", routes.get)

    def chosen(own: str, other: str, master_address: str) -> str | None:
        os.environ.pop("GLOO_SOCKET_IFNAME", None)
        places = [rendezvous.Place("a", 0, 1, own), rendezvous.Place("b", 0, 1, other)]
        rendezvous._choose_interface(places, places[0], master_address)
        return os.environ.get("GLOO_SOCKET_IFNAME")

    assert chosen("10.0.0.1", "10.0.0.2", "10.0.0.1") == "eth1"  # the first machine
    assert chosen("127.0.1.1", "10.0.0.2", "127.0.1.1") == "eth1"  # it knows itself as loopback
    assert chosen("10.0.0.2", "10.0.0.1", "10.0.0.1") == "eth2"  # another one
    assert chosen("10.0.0.2", "10.0.0.1", "10.9.9.9") is None  # no way: left to gloo


def test_an_interface_that_somebody_chose_stays(master, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    places = [rendezvous.Place("a", 0, 1, "127.0.0.1"), rendezvous.Place("b", 0, 1, "127.0.0.1")]
    rendezvous._choose_interface(places, places[0], "127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "ib0"
