"""The client's errors: every one names URL, cause and remedy, and has the right exit status."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw_ctl.client import AdminClient
from llmgw_ctl.connection import Target
from llmgw_ctl.errors import BadInputError, CtlError, NotFoundError, RefusedError, UnreachableError
from llmgw_testing.etcd_tls import TestAuthority
from llmgw_testing.fake_admin import TOKEN, FakeAdmin

Work = Callable[[AdminClient], Coroutine[Any, Any, Any]]


@pytest.fixture
def admin() -> Iterator[FakeAdmin]:
    with FakeAdmin() as running:
        yield running


def call(target: Target, work: Work, **options: Any) -> Any:
    async def run() -> Any:
        async with AdminClient(target, **options) as client:
            return await work(client)

    return asyncio.run(run())


def target(*servers: str, token: str | None = TOKEN, **more: Any) -> Target:
    return Target(servers, "--server", token, "/etc/t.token", **more)


def failure(where: Target, work: Work = lambda client: client.status(), **options: Any) -> CtlError:
    with pytest.raises(CtlError) as caught:
        call(where, work, **options)
    assert caught.value.remedy
    return caught.value


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port


@contextlib.contextmanager
def raw_server(answer: bytes | None) -> Iterator[str]:
    """Answers every connection with these bytes and closes it, or (None) says nothing."""
    import threading

    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def serve() -> None:
            server.settimeout(0.05)
            while not done.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.settimeout(30)
                    connection.recv(65_536)
                    if answer is None:
                        done.wait(30)
                    else:
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            done.set()
            thread.join(30)


def test_connection_refused(closed_port: int) -> None:
    error = failure(target(f"http://127.0.0.1:{closed_port}"))
    assert isinstance(error, UnreachableError)
    assert error.message == f"cannot reach the coordinator at http://127.0.0.1:{closed_port}: connection refused"
    assert "--server" in error.remedy


def test_the_default_address_suggests_up(closed_port: int) -> None:
    error = failure(Target((f"http://127.0.0.1:{closed_port}",), "the default", None, ""))
    assert "llmgwctl up" in error.remedy


def test_the_next_server_is_tried_and_then_kept(admin: FakeAdmin, closed_port: int) -> None:
    async def twice(client: AdminClient) -> list[str]:
        await client.status()
        await client.status()
        return client._servers

    servers = call(target(f"http://127.0.0.1:{closed_port}", admin.url), twice)
    assert servers[0] == admin.url
    assert len(admin.requests) == 2


def test_unknown_host() -> None:
    error = failure(target("http://no-such-host.invalid:7080"))
    assert isinstance(error, UnreachableError)
    assert "no-such-host.invalid" in error.message


def test_no_answer_in_time() -> None:
    with raw_server(None) as url:
        error = failure(target(url), answer_seconds=0.3)
    assert isinstance(error, UnreachableError)
    assert "no answer in time" in error.message


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"])
def test_something_else_listens_there(answer: bytes) -> None:
    with raw_server(answer) as url:
        error = failure(target(url))
    assert isinstance(error, UnreachableError)
    assert url in error.message


def test_a_web_server_that_is_no_coordinator(admin: FakeAdmin) -> None:
    admin.answer_all_with(200, b"<html>hello</html>", "text/html")
    error = failure(target(admin.url))
    assert isinstance(error, UnreachableError)
    assert "does not answer as a coordinator" in error.message
    admin.answer_all_with(200, b"{}")
    assert "does not answer as a coordinator" in failure(target(admin.url), lambda client: client.models()).message
    admin.answer_all_with(404, b"<html>not here</html>", "text/html")
    error = failure(target(admin.url))
    assert isinstance(error, NotFoundError)
    assert f"{admin.url} answered 404" in error.message


def test_a_wrong_token_names_its_file(admin: FakeAdmin) -> None:
    error = failure(target(admin.url, token="wrong-token"))
    assert isinstance(error, BadInputError)
    assert "/etc/t.token" in error.message
    assert "wrong-token" not in error.message + error.remedy


def test_no_token(admin: FakeAdmin) -> None:
    error = failure(target(admin.url, token=None))
    assert "none was given" in error.message
    assert "--token-file" in error.remedy


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadInputError),
        (422, BadInputError),
        (404, NotFoundError),
        (409, RefusedError),
        (500, RefusedError),
        (503, UnreachableError),
    ],
)
def test_what_the_coordinator_says_is_passed_on(admin: FakeAdmin, status: int, kind: type[CtlError]) -> None:
    admin.answer_all_with(status, b'{"error": {"code": "c", "message": "the thing broke", "remedy": "mend it"}}')
    error = failure(target(admin.url))
    assert type(error) is kind
    assert (error.message, error.remedy) == ("the thing broke", "mend it")


@pytest.mark.parametrize("name", ["org/model", "a b%2F", "..", ".", "ü?x=1#y"])
def test_every_name_is_one_segment_of_the_path(admin: FakeAdmin, name: str) -> None:
    admin.add(name)
    assert call(target(admin.url), lambda client: client.model(name))["name"] == name


def test_logs_come_in_pieces_and_follow(admin: FakeAdmin) -> None:
    async def read(client: AdminClient) -> bytes:
        return b"".join([chunk async for chunk in client.logs("m-1", tail=7, follow=True)])

    assert call(target(admin.url), read) == b"first line\nsecond line\na later line\n"
    assert admin.requests == [("GET", "/admin/v1/replicas/m-1/logs?tail=7&follow=1")]


def test_logs_of_nobody(admin: FakeAdmin) -> None:
    async def read(client: AdminClient) -> None:
        async for _ in client.logs("nobody", tail=1, follow=False):
            pass

    assert isinstance(failure(target(admin.url), read), NotFoundError)


def test_tls_with_the_clusters_ca_and_without_it(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    files = authority.issue("coordinator")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.cert, files.key)
    with FakeAdmin(tls) as admin:
        assert call(target(admin.url, ca=authority.ca), lambda client: client.status())["leader"] == "c1"
        error = failure(target(admin.url))
        assert isinstance(error, UnreachableError)
        assert "its certificate is not accepted" in error.message
        assert "ca:" in error.remedy
        plain = failure(target(admin.url.replace("https", "http")))
        assert isinstance(plain, UnreachableError | BadInputError)
    with FakeAdmin() as admin:
        error = failure(target(admin.url.replace("http", "https")))
        assert "TLS failed" in error.message
        assert "http://" in error.remedy


def test_a_ca_file_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not a certificate")
    error = failure(target("https://127.0.0.1:1", ca=tmp_path / "ca.pem"))
    assert isinstance(error, BadInputError)
    assert "ca.pem" in error.message
