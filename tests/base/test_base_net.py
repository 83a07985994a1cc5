from __future__ import annotations

import os
import socket

import pytest

from llmgw_base.config import ConfigError
from llmgw_base.net import Listen, bind, is_loopback, parse_listen, require_safe


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:80", Listen("127.0.0.1", 80)),
        ("8080", Listen("127.0.0.1", 8080)),
        ("[::1]:9", Listen("::1", 9)),
        ("gpu-1.example:0", Listen("gpu-1.example", 0)),
    ],
)
def test_parse_listen(text: str, expected: Listen) -> None:
    assert parse_listen(text) == expected


@pytest.mark.parametrize("text", ["", "x", "1.2.3.4:", "1.2.3.4:70000", ":80", "h:-1", "h:٣"])
def test_parse_listen_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match="write host:port"):
        parse_listen(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("gpu-1", False)],
)
def test_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_plaintext_to_others_needs_a_word() -> None:
    require_safe(Listen("127.0.0.1", 1), tls=False, insecure=False)
    require_safe(Listen("0.0.0.0", 1), tls=True, insecure=False)
    require_safe(Listen("0.0.0.0", 1), tls=False, insecure=True)
    with pytest.raises(ConfigError, match="insecure: true"):
        require_safe(Listen("0.0.0.0", 1), tls=False, insecure=False)


def test_a_taken_port_names_its_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            bind(Listen("127.0.0.1", port))
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert f"pid {os.getpid()}" in str(caught.value)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(ConfigError, match="choose an address of this machine"):
        bind(Listen("192.0.2.1", 0))
