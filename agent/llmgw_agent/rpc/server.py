"""The gRPC server: one port, plain on loopback or mutually authenticated TLS."""

from __future__ import annotations

from collections.abc import Callable

import grpc
from grpc import aio

from llmgw_agent.config import AgentConfig
from llmgw_base.config import ConfigError, TlsSection
from llmgw_base.net import Listen, parse_listen, port_holder
from llmgw_proto import agent_pb2_grpc


async def start_server(
    config: AgentConfig, service: agent_pb2_grpc.AgentServicer, *more: Callable[[aio.Server], None]
) -> tuple[aio.Server, Listen]:
    """Returns the server and where it listens really. ``more`` add further services to it.

    Raises:
        ConfigError: the port is taken, the address is not this machine's, or a certificate cannot be read.
    """
    listen = parse_listen(config.listen)
    # Without SO_REUSEPORT: a second server on the same port would take half of the calls.
    server = aio.server(options=[("grpc.so_reuseport", 0)])
    agent_pb2_grpc.add_AgentServicer_to_server(service, server)  # type: ignore[no-untyped-call]  # generated
    for add in more:
        add(server)
    try:
        if config.tls is None:
            port = server.add_insecure_port(str(listen))
        else:
            port = server.add_secure_port(str(listen), credentials(config.tls))
    except RuntimeError as error:
        holder = port_holder(listen.port)
        cause = f"{holder} holds the port" if holder else "the port is taken or the address is not this machine's"
        raise ConfigError(
            f"listen: cannot listen on {listen}: {cause}; stop it or choose another one (0: any free port)"
        ) from error
    await server.start()
    return server, Listen(listen.host, port)


def credentials(tls: TlsSection) -> grpc.ServerCredentials:
    ca, cert, private = _files(tls)
    return grpc.ssl_server_credentials([(private, cert)], root_certificates=ca, require_client_auth=True)


def channel_credentials(tls: TlsSection) -> grpc.ChannelCredentials:
    """For calling another agent.

    Raises:
        ConfigError: a file cannot be read.
    """
    ca, cert, private = _files(tls)
    return grpc.ssl_channel_credentials(ca, private, cert)


def _files(tls: TlsSection) -> list[bytes]:
    """CA, certificate, key."""
    files = []
    for key in ("ca", "cert", "key"):
        path = getattr(tls, key)
        try:
            files.append(path.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"tls.{key}: {path} cannot be read: {error.strerror}; correct the path or its permissions"
            ) from error
    return files
