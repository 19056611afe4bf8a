"""Names, addresses and interfaces, with what every machine has: the loopback ones."""

import socket

from ftrecipes.runtime.addresses import interface_of, own_address, resolve


def test_an_address_stays_itself_and_a_name_gets_one():
    assert resolve("10.1.2.3", seconds=0) == "10.1.2.3"
    assert resolve("localhost", seconds=0) in ("127.0.0.1", "::1")


def test_a_name_that_nobody_knows_is_asked_for_again():
    assert resolve("no-such-host.invalid", seconds=0.1) is None


def test_a_name_may_come_later(monkeypatch):
    answers = iter([OSError, OSError, [(0, 0, 0, "", ("10.0.0.7", 0))]])

    def lookup(*args, **options):
        answer = next(answers)
        if answer is OSError:
            raise socket.gaierror
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    assert resolve("head", seconds=5) == "10.0.0.7"


def test_the_way_to_oneself_is_the_interface_that_only_loops():
    assert own_address("127.0.0.1") == "127.0.0.1"
    names = [name for _, name in socket.if_nameindex()]
    assert interface_of("127.0.0.1") in [name for name in names if name.startswith("lo")]
    assert interface_of("203.0.113.77") is None  # of a range that no machine has
