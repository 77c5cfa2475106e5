"""Which interface leads to the master, and how long its port is waited for."""

import socket

import pytest

from kuangchao_contracts.errors import InvalidInputError, UnavailableError
from kuangchao_worker.layers.topology.network import interface_of, interface_variables, local_address, wait_for_port


@pytest.mark.parametrize("value", ["^lo", "^lo,docker0", "eth0,eth1", "=eth0", "", "none7"])
def test_gloo_takes_one_interface_and_no_list(value: str) -> None:
    """aws-samples/aws-do-eks#51."""
    with pytest.raises(InvalidInputError, match="GLOO_SOCKET_IFNAME") as error:
        interface_variables({"GLOO_SOCKET_IFNAME": value}, "127.0.0.1", 80, nccl=False)
    assert error.value.nearest == "lo"


@pytest.mark.parametrize(
    ("given", "nccl", "added"),
    [
        ({}, False, {"GLOO_SOCKET_IFNAME": "lo"}),
        ({}, True, {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}),
        ({"NCCL_SOCKET_IFNAME": "^docker0,veth"}, True, {"GLOO_SOCKET_IFNAME": "lo"}),
        ({"GLOO_SOCKET_IFNAME": "lo"}, True, {"NCCL_SOCKET_IFNAME": "=lo"}),
        ({"GLOO_SOCKET_IFNAME": "lo"}, False, {}),
    ],
)
def test_interface_is_the_one_that_routes_to_the_master_unless_the_user_chose(
    given: dict[str, str], nccl: bool, added: dict[str, str]
) -> None:
    assert interface_variables(given, "127.0.0.1", 80, nccl=nccl) == added
    assert interface_of("::1") in ("lo", None)


def test_link_local_is_never_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Probe(socket.socket):
        def connect(self, address: object) -> None: ...

        def getsockname(self) -> tuple[str, int]:
            return "169.254.7.7", 1

    monkeypatch.setattr(socket, "socket", Probe)
    with pytest.raises(UnavailableError, match="link-local"):
        local_address("127.0.0.1", 80)
    with pytest.raises(UnavailableError, match="link-local"):
        interface_variables({}, "127.0.0.1", 80, nccl=False)
    own = {"GLOO_SOCKET_IFNAME": "lo"}
    assert interface_variables(own, "127.0.0.1", 80, nccl=False) == {}, "who chose knows better"


def test_waiting_for_the_store_ends_with_the_reason() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port} did not answer within 0 s"):
            wait_for_port("127.0.0.1", port, 0.05, pause=0.01)
        with pytest.raises(UnavailableError, match="stopped"):
            wait_for_port("127.0.0.1", port, 60, lambda: True)


def test_port_may_open_after_the_name_resolves() -> None:
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    asked = []

    def stop() -> bool:
        asked.append(1)
        if len(asked) == 2:
            server.listen()
        return False

    with server:
        wait_for_port("127.0.0.1", server.getsockname()[1], 30, stop, pause=0.01)
    assert len(asked) == 2
