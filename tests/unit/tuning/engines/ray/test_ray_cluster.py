"""Errors when Ray cannot be started or reached: one line with the remedy."""

import os
import socket
import sys

import pytest

from legroom.errors import MissingExtra, UsageError
from legroom.tuning.engines.ray import cluster
from legroom.tuning.engines.ray.cluster import connected

pytestmark = pytest.mark.ray


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_an_unreachable_cluster_is_an_error() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(
        UsageError, match=f"There is no Ray cluster at {address}. Start a cluster with `ray start --head`"
    ):
        with connected(address, processors=1):
            raise AssertionError("there is a cluster")


def fail_to_connect(**options: object) -> None:
    raise ConnectionError("Could not find any running Ray instance.\nmore of Ray's")


def test_a_missing_local_cluster_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.init", fail_to_connect)  # other tests may have started Ray
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(UsageError, match="There is no Ray cluster on this machine"):
        with connected("auto", processors=1):
            raise AssertionError("there is a cluster")


def test_an_address_without_ray_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.init", fail_to_connect)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(
            UsageError, match=rf"Ray cannot connect to {address} \(Could not find any running Ray instance\)"
        ):
            with connected(address, processors=1):
                raise AssertionError("there is a cluster")


@pytest.mark.parametrize("address", ["nowhere", "host:", ":6379", "host:port"])
def test_an_invalid_address_is_an_error(address: str) -> None:
    with pytest.raises(UsageError, match="Use `host:6379`, or `auto`"):
        with connected(address, processors=1):
            raise AssertionError("there is a cluster")


def test_the_ray_client_is_rejected_with_an_alternative() -> None:
    with pytest.raises(UsageError, match="Run the command on a cluster node"):
        with connected("ray://host:10001", processors=1):
            raise AssertionError("there is a cluster")


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"Ray is not installed: pip install .*\[tune\]"):
        with connected(None, processors=1):
            raise AssertionError("there is a cluster")


def test_the_environment_is_restored_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "1")
    before = dict(os.environ)
    with pytest.raises(UsageError):
        with connected("nowhere", processors=1):
            raise AssertionError("there is a cluster")
    assert {name: value for name, value in os.environ.items() if name in cluster.QUIET} == {
        name: value for name, value in before.items() if name in cluster.QUIET
    }


def test_a_failed_start_of_ray_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(**settings: object) -> None:
        raise Exception(
            "The current node timed out during startup. This could happen because of much.\nMore."
        )

    monkeypatch.setattr("ray.init", late)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with (
        pytest.raises(UsageError, match=r"\(The current node timed out during startup\)\. Try again, or use"),
        connected(None, processors=1),
    ):
        pass


def test_a_local_ray_starts_without_unneeded_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    node = pytest.importorskip("ray._private.node")
    parameter = pytest.importorskip("ray._private.parameter")
    before = parameter.RayParams, node.Node.start_api_server
    started = []

    def init(**settings: object) -> None:
        given = parameter.RayParams()
        given.update_if_absent(include_log_monitor=True)  # as Ray's node does
        started.append((given.no_monitor, given.include_log_monitor, node.Node.start_api_server))

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with connected(None, processors=1):
        pass
    with connected("auto", processors=1):
        pass
    (is_alone, is_read, serves), (joined_alone, joined_read, joined_serves) = started
    assert (is_alone, is_read) == (True, False)
    assert serves is not before[1]
    assert (joined_alone, joined_read, joined_serves) == (False, True, before[1]), "a cluster is not patched"
    assert (parameter.RayParams, node.Node.start_api_server) == before
