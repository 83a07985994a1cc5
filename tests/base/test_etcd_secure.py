"""TLS with client certificates, and users whose roles allow some keys only."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from llmgw_base.clock import SystemClock
from llmgw_base.config import EtcdSection, TlsSection
from llmgw_base.etcd.api import Stale, Synced
from llmgw_base.etcd.client import EtcdStore
from llmgw_base.etcd.errors import StoreAuthError, StoreRefusedError, StoreUnavailableError
from llmgw_testing.etcd_server import EtcdServer, Series
from llmgw_testing.etcd_tls import TestAuthority
from llmgw_testing.follower import Follower
from llmgw_testing.scenario import on_both, run_clean

CLOCK = SystemClock()


def test_client_certificates(tmp_path: Path) -> None:
    ours, theirs = TestAuthority(tmp_path, "ours"), TestAuthority(tmp_path, "theirs")
    server_tls, client_tls, stranger_tls = ours.issue("etcd"), ours.issue("client"), theirs.issue("stranger")

    async def main() -> None:
        with EtcdServer("3.5", tls=server_tls) as server:
            section = EtcdSection(endpoints=[server.endpoint], tls=client_tls)
            store = await EtcdStore.connect(section, clock=CLOCK)
            async with Follower(store.watch("/a/")) as follower:
                await store.put("/a/1", b"x")
                await follower.until(lambda: follower.state, what="the put")
            await store.close()

            async def refused(tls: TlsSection) -> None:
                with pytest.raises(StoreUnavailableError, match=r"no member answered \(https://"):
                    await EtcdStore.connect(EtcdSection(endpoints=[server.endpoint], tls=tls), clock=CLOCK)

            await asyncio.gather(
                refused(stranger_tls.model_copy(update={"ca": ours.ca})),  # the server does not trust the client
                refused(client_tls.model_copy(update={"ca": theirs.ca})),  # the client does not trust the server
            )
            missing = client_tls.model_copy(update={"key": tmp_path / "none.pem"})
            with pytest.raises(StoreRefusedError, match=r"etcd\.tls: .*none\.pem cannot be read: No such file"):
                await EtcdStore.connect(EtcdSection(endpoints=[server.endpoint], tls=missing), clock=CLOCK)

    run_clean(main())


def test_a_renewed_certificate_is_taken_up(tmp_path: Path) -> None:
    """The files are replaced while the program runs; the next connection uses what is in them then."""
    old, new = TestAuthority(tmp_path, "old"), TestAuthority(tmp_path, "new")
    client_tls = old.issue("client")

    async def main() -> None:
        server = EtcdServer("3.5", tls=old.issue("etcd"))
        try:
            server.start()
            store = await EtcdStore.connect(EtcdSection(endpoints=[server.endpoint], tls=client_tls), clock=CLOCK)
            async with Follower(store.watch("/a/")) as follower:
                await store.put("/a/1", b"x")
                await follower.until(lambda: follower.state, what="the put")
                server.kill()
                renewed = new.issue("renewed")
                for name in ("ca", "cert", "key"):
                    getattr(client_tls, name).write_bytes(getattr(renewed, name).read_bytes())
                server._tls = new.issue("etcd-new")
                server.start()
                await store.put("/a/2", b"x")
                await follower.until(lambda: len(follower.state) == 2, what="the put under the new certificate")
            await store.close()
        finally:
            server.close()

    run_clean(main())


def _with_users(server: EtcdServer) -> None:
    for command in (
        ["user", "add", "root:rootpw"],
        ["user", "grant-role", "root", "root"],
        ["role", "add", "node"],
        ["role", "grant-permission", "node", "--prefix=true", "readwrite", "/node/"],
        ["role", "grant-permission", "node", "--prefix=true", "read", "/shared/"],
        ["user", "add", "node:node pw"],
        ["user", "grant-role", "node", "node"],
        ["auth", "enable"],
    ):
        server.ctl(*command)


def test_users(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main(series: Series) -> None:
        password = tmp_path / f"password-{series}"
        password.write_text("node pw\n")
        flags = ["--auth-token-ttl=1", "--bcrypt-cost=4"]
        with EtcdServer(series, flags=flags) as server:
            section = EtcdSection(endpoints=[server.endpoint], user="node", password_file=password)

            early = await EtcdStore.connect(section, clock=CLOCK)  # authentication is not enabled yet
            await early.put("/elsewhere", b"x")
            assert "its authentication is not enabled" in caplog.text
            _with_users(server)
            with pytest.raises(StoreAuthError, match=r"put /elsewhere: .*permission denied; grant"):
                await early.put("/elsewhere", b"x")
            await early.close()

            store = await EtcdStore.connect(section, clock=CLOCK)
            assert await store.put("/node/1", b"x")
            assert await store.get("/shared/1") is None
            for refused in (store.put("/shared/1", b"x"), store.get("/other"), store.range("/")):
                with pytest.raises(StoreAuthError, match="permission denied"):
                    await refused
            async with aclosing(store.watch("/other/")) as watch:
                first = await anext(watch)
                assert isinstance(first, Stale)
                assert "permission denied" in first.reason

            async with Follower(store.watch("/node/")) as follower:
                lease = await store.grant(5)
                await store.put("/node/lease", b"x", lease=lease.id)
                await follower.until(lambda: len(follower.state) == 2, what="both keys")
                # tokens run out after a second without use
                await asyncio.sleep(2.5)
                assert not lease.lost
                assert await store.txn([], []) is True
                await asyncio.sleep(2.5)
                await asyncio.gather(*(store.put("/node/2", b"%d" % number) for number in range(20)))
                # and die with the server
                server.restart()
                await store.put("/node/3", b"y")
                await follower.until(lambda: "/node/3" in follower.state, what="a put after the restart")
                # and grow old when roles change
                server.ctl("role", "grant-permission", "node", "readwrite", "/one", user="root:rootpw")
                await store.put("/one", b"x")
                await follower.until(lambda: follower.condition is Synced, what="sync")
                assert not lease.lost
                await lease.revoke()

                # a changed password is read from the file when it is needed
                server.ctl("user", "passwd", "node", "--interactive=false", user="root:rootpw", stdin="newpw\n")
                password.write_text("newpw")
                server.restart()
                await store.put("/node/4", b"y")

            password.write_text("wrong")
            with pytest.raises(StoreAuthError, match=r"authentication failed.*check etcd\.user and etcd\.password_file"):
                await EtcdStore.connect(section, clock=CLOCK)
            await store.close()
            password.unlink()
            with pytest.raises(StoreAuthError, match=r"password_file: .*cannot be read"):
                await EtcdStore.connect(section, clock=CLOCK)
            nobody = EtcdStore(EtcdSection(endpoints=[server.endpoint]), CLOCK)
            with pytest.raises(StoreAuthError, match=r"set etcd\.user and etcd\.password_file"):
                await nobody.get("/node/1")
            await nobody.close()

    on_both(main)
