"""llama.cpp: a ``llama-server`` binary from the configuration or PATH, else the ``xllamacpp`` package in this Python."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

from llmgw_agent.engines import xllamacpp_server
from llmgw_agent.engines.base import Available, Checked, Facts, Host, Launch, Located, Pattern, Place
from llmgw_agent.engines.client import EngineClient, EngineSilentError
from llmgw_agent.engines.facts import listed_facts
from llmgw_agent.engines.llamacpp_memory import memory_needed
from llmgw_agent.engines.llamacpp_rpc import RPC_PATTERNS, find_rpc_server, head_arguments, worker_argv
from llmgw_agent.engines.weights import check_gguf, path_of
from llmgw_agent.errors import RejectedError
from llmgw_agent.install.shelf import Shelf
from llmgw_agent.weights import check_loadable
from llmgw_proto.engines import check_args, check_env
from llmgw_proto.records import AssignmentRecord, EngineInfo, ShardRole

MIB = 1 << 20
#: llama-server keeps finished prompts in host memory, up to 8 GiB unless told otherwise; nobody set that memory aside.
PROMPT_CACHE_MIB = 256
DEFAULT_SLOTS = 4
#: Tokens of context. Without a figure llama-server takes all that the model was trained for, which may need more host memory
#: than its weights; on GPUs it fits the context to what is free.
DEFAULT_CONTEXT = 8192
#: Tokens of a prompt that are computed in one go on CPUs: llama.cpp's own default for -ub.
CPU_BATCH = 512
_LAUNCHER = "llmgw_agent.engines.xllamacpp_server"


class LlamaCpp:
    name = "llamacpp"
    patterns: tuple[Pattern, ...] = (
        Pattern(
            re.compile(r"unknown model architecture: '?([\w.-]+)"),
            "this llama.cpp does not know the model's architecture {0}.",
            "Use a newer llama.cpp or another model.",
            final=True,
        ),
        Pattern(
            re.compile(r"error: invalid argument: (\S+)|error while handling argument \"?([\w-]+)|unknown argument:? (\S+)"),
            "llama-server does not take the argument {0}.",
            "Correct the model's args.",
            final=True,
        ),
        *RPC_PATTERNS,
        Pattern(
            re.compile(r"couldn't bind HTTP server socket|address already in use", re.IGNORECASE),
            "the port was taken.",
            "Another port is tried.",
            port_taken=True,
        ),
        Pattern(
            re.compile(r"failed to allocate|out of memory|cudaMalloc failed|std::bad_alloc|unable to allocate", re.IGNORECASE),
            "memory ran out while the model was loaded.",
            "Give it less context (-c), fewer slots (-np), a smaller quantisation, or a node with more memory.",
        ),
        Pattern(
            re.compile(r"failed to load model|tensor .* data is not within the file bounds|error loading model: (.+)"),
            "the weights could not be loaded.",
            "The file is damaged or of a kind that this llama.cpp cannot load: copy it again or use a newer llama.cpp.",
            final=True,
        ),
    )

    def __init__(self, binary: str | None = None, rpc_server: str | None = None, *, shelf: Shelf | None = None) -> None:
        """
        Args:
            binary, rpc_server: paths of llama-server and of llama.cpp's RPC server; None: wherever they are found.
        """
        self._binary, self._rpc_server = binary, rpc_server
        self._shelf = shelf or Shelf()
        self._located: Located | None = None

    def locate(self) -> Located | None:
        found = self._locate_binary() or (None if self._binary else self._locate_package())
        self._located = found
        return found

    def _locate_binary(self) -> Located | None:
        path = shutil.which(self._binary or "llama-server")
        if path is None:
            return None
        if self._located is not None and self._located.argv == (path,):
            return self._located
        try:
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = re.search(r"version:\s*(\S+)", done.stdout + done.stderr)
        return Located(match[1] if match else "unknown", path, (path,))

    def _locate_package(self) -> Located | None:
        if importlib.util.find_spec("xllamacpp") is None:
            return None
        version = importlib.metadata.version("xllamacpp")
        # -P: never a module from the folder that the agent happens to run in.
        return Located(version, f"package xllamacpp of {sys.executable}", (sys.executable, "-P", "-m", _LAUNCHER))

    @property
    def explicit(self) -> bool:
        """Whether the configuration names the program: it then runs unless another version is wished."""
        return self._binary is not None

    def inventory(self) -> list[EngineInfo]:
        """What the host has, every version that the agent installed, and the one that it can install."""
        host = self.locate()
        usual = host is not None and (self.explicit or self._shelf.default(self.name) is None)
        found = [] if host is None else [EngineInfo(name=self.name, version=host.version, detail=host.detail, default=usual)]
        return found + self._shelf.listed(self.name, preferred=not usual)

    def check(self, wish: AssignmentRecord, host: Host, weights: Available | None = None) -> Checked:
        problem = check_args(self.name, wish.args) or check_env(wish.env)
        if problem is not None:
            raise RejectedError(problem)
        if wish.role is ShardRole.WORKER:
            # It gets its part of the weights from the head.
            return Checked(None, wish.memory_bytes)
        path = path_of(wish.source, weights)
        size = check_gguf(path)
        facts = weights.facts if weights is not None else None
        if facts is not None:
            # Which architectures this llama.cpp knows cannot be asked; its log tells, see the patterns.
            if (objection := check_loadable(facts, None, None)) is not None:
                raise RejectedError(f"weights {path}: {objection}")
            size = facts.weights_bytes or size
        need = wish.memory_bytes or memory_needed(size, facts, wish.args, DEFAULT_CONTEXT) + PROMPT_CACHE_MIB * MIB
        if wish.peers and not wish.memory_bytes:
            need = need // len(wish.peers) + PROMPT_CACHE_MIB * MIB
        if not wish.gpus and not wish.peers and size > host.memory_limit:
            raise RejectedError(
                f"weights {path} have {size} bytes, more than the {host.memory_limit} bytes that this node has for engines; "
                "use a smaller quantisation or a node with more memory"
            )
        return Checked(path, need)

    def launch(self, wish: AssignmentRecord, located: Located, checked: Checked, place: Place) -> Launch:
        if wish.role is ShardRole.WORKER:
            return self._launch_worker(wish, located, place)
        assert checked.weights is not None
        argv = [*located.argv, "-m", str(checked.weights), "--host", place.host, "--port", str(place.port)]
        argv += ["--alias", wish.model]
        if not _given(wish.args, "-np", "--parallel"):
            # One common context for all slots: each request may use all of it.
            argv += ["-np", str(DEFAULT_SLOTS), "--kv-unified"]
        if not wish.gpus and not _given(wish.args, "-c", "--ctx-size"):
            argv += ["-c", str(DEFAULT_CONTEXT)]
        if not wish.gpus and not _given(wish.args, "-b", "--batch-size", "-ub", "--ubatch-size"):
            # It computes so many tokens at a time in any case, and between two batches it answers and serves other requests.
            argv += ["-b", str(CPU_BATCH)]
        if not _given(wish.args, "-cram", "--cache-ram"):
            argv += ["--cache-ram", str(PROMPT_CACHE_MIB)]
        if not _given(wish.args, "--slots", "--no-slots"):
            argv.append("--slots")
        if not _given(wish.args, "--metrics"):
            argv.append("--metrics")
        if place.gang is not None:
            if _is_package(located):
                raise RejectedError(
                    "the xllamacpp package cannot use other nodes: install a llama-server that was built with GGML_RPC on this "
                    "node, or let the agent install one"
                )
            argv += head_arguments(wish, place.gang)
        arguments = [*argv[len(located.argv) :], *wish.args]
        if _is_package(located):
            _check_launcher(arguments)
        environment = {**wish.env, "LLAMA_API_KEY": place.api_key, "PYTHONUNBUFFERED": "1", **marks_of(located)}
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(wish.gpus)
        return Launch([*located.argv, *arguments], environment)

    def _launch_worker(self, wish: AssignmentRecord, located: Located, place: Place) -> Launch:
        assert place.gang is not None
        argv = worker_argv(find_rpc_server(self._rpc_server, located.argv[0]), place.gang)
        devices = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(wish.gpus)}
        return Launch(argv, {**place.fabric, **wish.env, **devices, **marks_of(located)})

    def worker_listens(self, wish: AssignmentRecord) -> bool:
        return True

    def capabilities(self, wish: AssignmentRecord) -> list[str]:
        if wish.capabilities is not None:
            return wish.capabilities
        if _given(wish.args, "--rerank", "--reranking"):
            return ["rerank"]
        embeddings = ["embeddings"] if _given(wish.args, "--embedding", "--embeddings") else []
        return ["chat", "completions", *embeddings]

    def health_path(self, wish: AssignmentRecord) -> str:
        return "/health"

    async def busy(self, client: EngineClient) -> bool | None:
        slots = (await client.get("/slots", 2)).json
        if not isinstance(slots, list):
            return None
        if any(isinstance(slot, dict) and slot.get("is_processing") for slot in slots):
            return True
        waiting = re.search(rb"^llamacpp:requests_deferred (\d+)", (await client.get("/metrics", 2)).body, re.MULTILINE)
        return waiting is not None and int(waiting[1]) > 0

    async def facts(self, client: EngineClient, wish: AssignmentRecord) -> Facts:
        facts = await listed_facts(client, wish.model)
        try:
            slots = (await client.get("/slots", 5)).json
        except EngineSilentError:
            slots = None
        return replace(facts, max_concurrency=len(slots)) if isinstance(slots, list) and slots else facts


def marks_of(located: Located) -> dict[str, str]:
    """Tells that the environment it runs from is in use; and nothing of the agent's own Python gets in."""
    return {} if located.home is None else {"VIRTUAL_ENV": str(located.home), "PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}


def _is_package(located: Located) -> bool:
    """Whether it is the server of the xllamacpp package, which takes fewer arguments and cannot use other nodes."""
    return located.argv[-1] == _LAUNCHER or located.argv[-1].endswith("xllamacpp_server.py")


def _given(args: Sequence[str], *flags: str) -> bool:
    return any(arg.partition("=")[0] in flags for arg in args)


def _check_launcher(arguments: list[str]) -> None:
    try:
        xllamacpp_server.parse(arguments)
    except xllamacpp_server.BadArgumentsError as error:
        raise RejectedError(
            f"args: {error}; correct them, or install a llama-server binary, which takes all of llama.cpp's arguments"
        ) from error
