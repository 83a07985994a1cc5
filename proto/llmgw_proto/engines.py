"""What users may pass on to engines, checked alike by the admin API (when a model is applied) and by the agent.

Every check returns None when all is well, else one sentence that names the argument, the cause and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

#: What the argv template of engine ``command`` may contain in braces.
COMMAND_FIELDS = frozenset({"host", "port", "model", "name", "api_key"})

#: Variables that start like this tie a process to its shard; a user's value would hide it from the agent.
MARKER_PREFIX = "LLMGW_"

_ADDRESS = "the agent chooses where the engine listens; remove it"
_KEY = "each replica has a key of its own that only routers know; remove it"
_NAME = "the name that clients use is the model's name; remove it"
_WEIGHTS = "the weights are the model's source; remove it and set source"
_PATHS = "health checks and requests go to the usual paths; remove it"
_LOG = "the agent keeps the engine's log; remove it and read the log with `llmgwctl replica logs`"
_SEVERAL = "a replica serves one model; remove it and apply a second model"
_EXITS = "it makes the engine print something and exit instead of serving; remove it"
_NODES = "which nodes serve a replica is the coordinator's choice; remove it"
_GPUS = "over how many GPUs a replica is split follows from the profile's gpus; remove it"
_EVENTS = "the agent chooses where KV-cache events go and forwards them; remove it and set the agent's engines.kv_events"
_FILE = "settings in a file would go unchecked; remove it and write them as args"
_HTTP = "requests and health checks come by plain HTTP/1.1; remove it"

_RESERVED: dict[str, dict[str, str]] = {
    "llamacpp": {
        **dict.fromkeys(("--host", "--port", "--reuse-port"), _ADDRESS),
        **dict.fromkeys(("--ssl-key-file", "--ssl-cert-file"), _ADDRESS),
        **dict.fromkeys(("--api-key", "--api-key-file"), _KEY),
        **dict.fromkeys(("-a", "--alias", "--tags"), _NAME),
        **dict.fromkeys(("-m", "--model", "-mu", "--model-url", "-dr", "--docker-repo"), _WEIGHTS),
        **dict.fromkeys(("-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"), _WEIGHTS),
        **dict.fromkeys(("--api-prefix",), _PATHS),
        **dict.fromkeys(("--log-file", "--log-disable"), _LOG),
        **dict.fromkeys(
            ("--models-dir", "--models-preset", "--models-max", "--models-autoload", "--no-models-autoload"), _SEVERAL
        ),
        **dict.fromkeys(("--rpc",), _NODES),
        **dict.fromkeys(("-h", "--help", "--usage", "--version", "--license", "--list-devices"), _EXITS),
        **dict.fromkeys(("-cl", "--cache-list", "--completion-bash"), _EXITS),
    },
    "vllm": {
        **dict.fromkeys(("--host", "--port", "--uds"), _ADDRESS),
        **dict.fromkeys(("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-cert-reqs", "--ssl-ciphers"), _HTTP),
        **dict.fromkeys(("--enable-ssl-refresh", "--no-enable-ssl-refresh", "--grpc", "--grpc-port"), _HTTP),
        **dict.fromkeys(("--api-key",), _KEY),
        **dict.fromkeys(("--model", "--model-tag"), _WEIGHTS),
        **dict.fromkeys(("--served-model-name",), _NAME),
        **dict.fromkeys(("--root-path",), _PATHS),
        **dict.fromkeys(("--kv-events-config",), _EVENTS),
        **dict.fromkeys(("--config",), _FILE),
        **dict.fromkeys(("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp"), _GPUS),
        **dict.fromkeys(("--prefill-context-parallel-size", "-pcp", "--device-ids"), _GPUS),
        **dict.fromkeys(("--data-parallel-size", "-dp", "--data-parallel-size-local", "-dpl"), _GPUS),
        **dict.fromkeys(("--data-parallel-rank", "-dpn", "--data-parallel-start-rank", "-dpr"), _NODES),
        **dict.fromkeys(("--data-parallel-address", "-dpa", "--data-parallel-rpc-port", "-dpp"), _NODES),
        **dict.fromkeys(("--data-parallel-backend", "-dpb", "--data-parallel-supervisor-port"), _NODES),
        **dict.fromkeys(("--data-parallel-hybrid-lb", "--no-data-parallel-hybrid-lb", "-dph"), _NODES),
        **dict.fromkeys(("--data-parallel-external-lb", "--no-data-parallel-external-lb", "-dpe"), _NODES),
        **dict.fromkeys(("--data-parallel-multi-port-external-lb", "-dpm"), _NODES),
        **dict.fromkeys(("--nnodes", "-n", "--node-rank", "-r", "--master-addr", "--master-port", "--headless"), _NODES),
        **dict.fromkeys(("-h", "--help", "--version"), _EXITS),
    },
    "sglang": {
        **dict.fromkeys(("--host", "--port", "--enable-http-worker-reuseport", "--gated-launch-port"), _ADDRESS),
        **dict.fromkeys(("--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--ssl-keyfile-password"), _HTTP),
        **dict.fromkeys(("--enable-ssl-refresh", "--grpc-mode", "--smg-grpc-mode", "--grpc-port"), _HTTP),
        **dict.fromkeys(("--api-key", "--admin-api-key"), _KEY),
        **dict.fromkeys(("--model-path", "--model"), _WEIGHTS),
        **dict.fromkeys(("--served-model-name",), _NAME),
        **dict.fromkeys(("--fastapi-root-path",), _PATHS),
        **dict.fromkeys(("--kv-events-config",), _EVENTS),
        **dict.fromkeys(("--config",), _FILE),
        **dict.fromkeys(("--tensor-parallel-size", "--tp-size", "--tp"), _GPUS),
        **dict.fromkeys(("--pipeline-parallel-size", "--pp-size", "--pp"), _GPUS),
        **dict.fromkeys(("--data-parallel-size", "--dp-size", "--dp"), _GPUS),
        **dict.fromkeys(("--base-gpu-id", "--gpu-id-step"), _GPUS),
        **dict.fromkeys(("--nnodes", "--node-rank", "--dist-init-addr", "--nccl-init-addr", "--nccl-port"), _NODES),
        **dict.fromkeys(("--use-ray", "--encoder-only"), _NODES),
        **dict.fromkeys(("-h", "--help", "--version"), _EXITS),
    },
}

#: Engines whose flags may be shortened as long as they stay unambiguous, as argparse does.
_ABBREVIATING = frozenset({"vllm", "sglang"})

#: Flags of their own that are also the beginning of a reserved one.
_WHOLE = frozenset({"--device"})

_FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def check_args(engine: str, args: Sequence[str]) -> str | None:
    """Whether a user may give these arguments to the engine.

    ``--flag=value`` and ``--flag_with_underscores`` count as the flag; engines accept such spellings. vLLM and SGLang accept
    ``--fla`` too, and ``-n2``; vLLM ``--flag.key``.
    """
    reserved = _RESERVED.get(engine, {})
    for arg in args:
        if "\0" in arg:
            return f"args: {arg!r} contains a NUL character, which no program can be given; remove it"
        flag = arg.partition("=")[0]
        if flag.startswith("--"):
            flag = "--" + flag[2:].replace("_", "-")
        if engine in _ABBREVIATING:
            flag = _meant(flag, reserved)
        if flag in reserved:
            return f"args: {flag} is reserved for engine {engine}: {reserved[flag]}"
    return None


def _meant(flag: str, reserved: Mapping[str, str]) -> str:
    """The reserved flag that argparse could take this for; the flag itself if none."""
    flag = flag.partition(".")[0] if flag.startswith("--") else flag
    if flag in reserved or flag in _WHOLE or not re.match(r"--?[a-z]", flag):
        return flag
    joined = re.fullmatch(r"(-[a-z]+)\d+", flag)
    if joined is not None and joined[1] in reserved:
        return joined[1]
    # A single dash can only shorten what has a single dash: `-t` is `-tp`.
    alike = (each for each in reserved if each.startswith(flag) and each.startswith("--") == flag.startswith("--"))
    return min(alike, key=len, default=flag)


def check_command(command: Sequence[str]) -> str | None:
    """Whether this is a usable argv template for engine ``command``: {port} must be in it, unknown fields must not."""
    for part in command:
        if "\0" in part:
            return f"command: {part!r} contains a NUL character, which no program can be given; remove it"
        unknown = set(_FIELD.findall(part)) - COMMAND_FIELDS
        if unknown:
            known = " ".join(f"{{{each}}}" for each in sorted(COMMAND_FIELDS))
            return f"command: {{{min(unknown)}}} is not a known field; use {known}"
    if not any("{port}" in part for part in command):
        return "command: {port} is missing, so the engine could not listen where the agent expects it; add it to an argument"
    return None


def check_env(env: Mapping[str, str]) -> str | None:
    """Whether a user may set these environment variables for an engine."""
    for name, value in env.items():
        if name.startswith(MARKER_PREFIX):
            return f"env: {name} is reserved, names that start with {MARKER_PREFIX} mark the agent's processes; choose another"
        if not name or "=" in name or "\0" in name + value:
            return f"env: {name!r} is not a name that an environment variable can have; correct it"
    return None


def fill_command(command: Sequence[str], fields: Mapping[str, str]) -> list[str]:
    """Fills the template's fields; braces around anything else stay as they are.

    >>> fill_command(["serve", "--port={port}", '{"json": 1}'], {"port": "7"})
    ['serve', '--port=7', '{"json": 1}']
    """
    return [_FIELD.sub(lambda found: fields.get(found[1], found[0]), part) for part in command]
