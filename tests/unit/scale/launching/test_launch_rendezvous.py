"""The rendezvous of `legroom launch`. A port that another program uses is reported before a node waits for others
there."""

import socket

import pytest
import torch.distributed as distributed
from torch.distributed.elastic.rendezvous import dynamic_rendezvous

from legroom.errors import LegroomError, UsageError
from legroom.scale.launching import elastic, rendezvous
from legroom.scale.launching.rendezvous import check_rendezvous

pytestmark = pytest.mark.slow


def test_a_free_port_is_accepted():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    check_rendezvous(f"127.0.0.1:{port}")


def test_a_port_of_another_program_is_rejected_with_an_alternative(monkeypatch):
    monkeypatch.setattr(rendezvous, "TIMEOUT_SECONDS", 1.0)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(LegroomError, match=rf"Port {port} is used by another program.*:{port + 1}"):
            check_rendezvous(f"127.0.0.1:{port}")


def test_a_port_of_another_node_is_accepted(monkeypatch):
    monkeypatch.setattr(rendezvous, "TIMEOUT_SECONDS", 30.0)  # a busy machine is slow
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    check_rendezvous(f"127.0.0.1:{store.port}")


def test_an_unknown_host_is_rejected(monkeypatch):
    def unknown(*_):
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UsageError, match="The host `nowhere` is unknown"):
        check_rendezvous("nowhere:29400")


def test_torchs_records_name_their_methods_without_reading_source_files(monkeypatch):
    def record() -> str:
        return dynamic_rendezvous.get_method_name()

    def join() -> str:
        return record()

    assert join() == "join"
    monkeypatch.delattr("inspect.stack")
    with elastic._fast_method_names():
        assert join() == "join"
