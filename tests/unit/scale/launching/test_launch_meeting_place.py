"""A port that another program holds is found out before anyone waits there."""

import socket

import pytest
import torch.distributed as distributed

from legroom.errors import LegroomError, UsageError
from legroom.scale.launching import rendezvous
from legroom.scale.launching.rendezvous import check_place


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(rendezvous, "PATIENCE_SECONDS", 3.0)


def test_a_free_port_will_do():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    check_place(f"127.0.0.1:{port}")


def test_a_port_where_a_stranger_listens_is_refused_with_another():
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        with pytest.raises(LegroomError, match=rf"port {port} is used by another program.*:{port + 1}"):
            check_place(f"127.0.0.1:{port}")


def test_a_port_where_another_node_waits_will_do():
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    check_place(f"127.0.0.1:{store.port}")


def test_a_host_without_an_address_is_refused(monkeypatch):
    def unknown(*_):
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UsageError, match="no address is known for 'nowhere'"):
        check_place("nowhere:29400")
