"""llama.cpp's own server from the ``xllamacpp`` package, with the command line of ``llama-server``.

``python -m llmgw_agent.engines.xllamacpp_server -m model.gguf --host 127.0.0.1 --port 8080 …``

The key comes from ``--api-key`` or, unseen by other users of the host, from ``LLAMA_API_KEY``. Flags that are not here need a
``llama-server`` binary.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, NoReturn


class BadArgumentsError(Exception):
    """Names the argument and what is wrong with it."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadArgumentsError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="xllamacpp-server", description="llama.cpp's server", allow_abbrev=False)
    add = parser.add_argument
    add("-m", "--model", required=True)
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8080)
    add("-a", "--alias")
    add("--api-key", default=os.environ.get("LLAMA_API_KEY"))
    add("-c", "--ctx-size", type=int, default=0)
    add("-np", "--parallel", type=int, default=1)
    add("-kvu", "--kv-unified", action="store_true")
    add("-b", "--batch-size", type=int)
    add("-ub", "--ubatch-size", type=int)
    add("-t", "--threads", type=int)
    add("-tb", "--threads-batch", type=int)
    add("-n", "--predict", "--n-predict", type=int)
    add("-ngl", "--gpu-layers", "--n-gpu-layers", type=int)
    add("-cram", "--cache-ram", type=int)
    add("--threads-http", type=int)
    add("--chat-template")
    add("--embedding", "--embeddings", action="store_true")
    add("--rerank", "--reranking", action="store_true")
    add("--pooling", choices=["none", "mean", "cls", "last", "rank"])
    add("--jinja", action=argparse.BooleanOptionalAction, default=True)
    add("--slots", action=argparse.BooleanOptionalAction, default=True)
    add("--metrics", action="store_true")
    add("--props", action="store_true")
    add("--warmup", action=argparse.BooleanOptionalAction, default=True)
    add("-to", "--timeout", type=int)
    add("-lv", "--verbosity", type=int)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line.

    Raises:
        BadArgumentsError: an unknown flag, or a value of the wrong kind.
    """
    return _parser().parse_args(argv)


def parameters(options: argparse.Namespace) -> Any:
    """The options as xllamacpp's ``CommonParams``."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = [options.host]
    params.port = options.port
    params.api_keys = [options.api_key] if options.api_key else []
    if options.alias:
        params.model_alias = {options.alias}
    params.n_ctx = options.ctx_size
    params.n_parallel = options.parallel
    params.kv_unified = options.kv_unified
    params.use_jinja = options.jinja
    params.endpoint_slots = options.slots
    params.endpoint_metrics = options.metrics
    params.endpoint_props = options.props
    params.warmup = options.warmup
    params.embedding = options.embedding or options.rerank
    params.ui = False
    optional = {
        "n_batch": options.batch_size,
        "n_ubatch": options.ubatch_size,
        "n_predict": options.predict,
        "n_gpu_layers": options.gpu_layers,
        "cache_ram_mib": options.cache_ram,
        "n_threads_http": options.threads_http,
        "chat_template": options.chat_template,
        "timeout_read": options.timeout,
        "timeout_write": options.timeout,
        "verbosity": options.verbosity,
    }
    for name, value in optional.items():
        if value is not None:
            setattr(params, name, value)
    if options.threads is not None:
        params.cpuparams.n_threads = options.threads
    if options.threads_batch is not None:
        params.cpuparams_batch.n_threads = options.threads_batch
    pooling = "rank" if options.rerank else options.pooling
    if pooling is not None:
        params.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{pooling.upper()}")
    return params


def main(argv: Sequence[str]) -> int:
    try:
        options = parse(argv)
    except BadArgumentsError as error:
        print(f"xllamacpp-server: {error}", file=sys.stderr)  # noqa: T201 - a program's word to whoever started it
        return 2
    import xllamacpp

    try:
        server = xllamacpp.Server(parameters(options))
    except RuntimeError as error:
        print(f"xllamacpp-server: {error}", file=sys.stderr)  # noqa: T201 - the cause stands in llama.cpp's own lines above
        return 1
    # The server runs in threads of its own; SIGTERM ends the process as it ends a C program.
    threading.Event().wait()
    del server
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
