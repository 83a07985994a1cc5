"""A coordinator's admin API without a coordinator: models do what the test says, one step each time they are asked about.

    with FakeAdmin() as admin:
        admin.script("m", Step("Progressing", ready=0), Step("Ready", ready=1))
        subprocess.run(["llmgwctl", "--server", admin.url, ...])

It serves from a thread of its own, so that programs and in-process commands with their own loops can call it.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

TOKEN = "a-token-for-tests"


@dataclass(frozen=True)
class Step:
    """What a model looks like at one look. ``ready`` None: all; ``replica``: the state of its replicas, None: it has none."""

    state: str
    ready: int | None = None
    reason: str = ""
    replica: str | None = "Ready"
    restarts: int = 0
    gone: bool = False


#: The answer to the change itself is the first look.
READY = (*[Step("Progressing", ready=0, replica="Starting")] * 2, Step("Ready"))


@dataclass
class _Model:
    spec: dict[str, Any]
    steps: list[Step] = field(default_factory=list)

    def look(self) -> Step:
        return self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]


class FakeAdmin:
    """``requests`` keeps (method, path with query) of every call that had the right token."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.requests: list[tuple[str, str]] = []
        self.bodies: list[Any] = []
        self.models: dict[str, _Model] = {}
        self.nodes: list[dict[str, Any]] = [node_view("n1")]
        self.fabrics: list[dict[str, Any]] = []
        self.weights: list[dict[str, Any]] = []
        """Of each node, as ``GET /admin/v1/nodes/{node}/weights`` answers."""
        self.silent: list[dict[str, Any]] = []
        self.steps: dict[str, list[dict[str, Any]]] = {}
        """By node: the lines of an answer to verify or fetch."""
        self.stale = False
        self.problems: list[str] = []
        self.log = b"first line\nsecond line\n"
        self.details: list[dict[str, Any]] = []
        """What the agent tells of a replica, one after the other; the last stays. None: it cannot be asked."""
        self.figures: dict[str, Any] = {}
        self.drained: set[str] = set()
        """Ids of replicas that an operator has taken out of routing."""
        self._override: tuple[int, bytes, str] | None = None
        self._scripts: dict[str, list[Step]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-admin", daemon=True)
        self.port = 0

    # What a test says

    def script(self, name: str, *steps: Step) -> None:
        """How the model goes on after its next change; the last step stays."""
        self._scripts[name] = list(steps)

    def add(self, name: str, *steps: Step, **spec: Any) -> None:
        """A model that is there already."""
        self.models[name] = _Model(_spec(name, spec), list(steps) or [Step("Ready")])

    def answer_all_with(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        self._override = (status, body, content_type)

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    # Life

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(middlewares=[self._check])
        app.router.add_get("/admin/v1/status", self._status)
        app.router.add_get("/admin/v1/nodes", self._nodes)
        app.router.add_get("/admin/v1/nodes/{name}", self._node)
        app.router.add_post("/admin/v1/nodes/{node}/gpus/{gpu}/{word}", self._gpu)
        app.router.add_post("/admin/v1/nodes/{node}/bandwidth", self._bandwidth)
        app.router.add_get("/admin/v1/weights", self._fleet_weights)
        app.router.add_get("/admin/v1/nodes/{node}/weights", self._node_weights)
        app.router.add_delete("/admin/v1/nodes/{node}/weights/{weights}", self._remove_weights)
        app.router.add_post("/admin/v1/nodes/{node}/weights/{word}", self._weights_steps)
        app.router.add_get("/admin/v1/fabrics", self._fabrics)
        app.router.add_get("/admin/v1/fabrics/{subnet}", self._fabric)
        app.router.add_get("/admin/v1/models", self._list)
        app.router.add_get("/admin/v1/models/{name}", self._get)
        app.router.add_put("/admin/v1/models/{name}", self._put)
        app.router.add_delete("/admin/v1/models/{name}", self._delete)
        app.router.add_post("/admin/v1/models/{name}/scale", self._scale)
        app.router.add_get("/admin/v1/replicas", self._replicas)
        app.router.add_get("/admin/v1/replicas/{id}", self._replica)
        app.router.add_get("/admin/v1/replicas/{id}/logs", self._logs)
        app.router.add_get("/admin/v1/replicas/{id}/details", self._details)
        app.router.add_post("/admin/v1/replicas/{id}/{word}", self._act)
        app.router.add_get("/admin/v1/nodes/{node}/telemetry", self._telemetry)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    @web.middleware
    async def _check(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _error(401, "unauthorized", "the token is wrong", "send the right one")
        self.requests.append((request.method, request.raw_path))
        if self._override is not None:
            status, body, content_type = self._override
            return web.Response(status=status, body=body, content_type=content_type)
        response: web.StreamResponse = await handler(request)
        return response

    # Answers

    async def _status(self, request: web.Request) -> web.Response:
        models = [self._view(name) for name in list(self.models)]
        return web.json_response(
            {
                "cluster": {"id": "c-1", "name": "test"},
                "leader": "c1",
                "stale": self.stale,
                "coordinators": [
                    {"id": "c1", "address": self.url, "version": "0.1.0", "started_at": 1_700_000_000.0, "leader": True}
                ],
                "routers": [{"id": "r1", "address": "http://127.0.0.1:8080", "version": "0.1.0", "models": {}}],
                "nodes": {"total": len(self.nodes), "alive": sum(each["alive"] for each in self.nodes)},
                "models": [{key: view[key] for key in ("name", "wanted", "ready", "state", "reason")} for view in models],
                "problems": self.problems,
            }
        )

    async def _nodes(self, request: web.Request) -> web.Response:
        return web.json_response({"nodes": self.nodes})

    async def _node(self, request: web.Request) -> web.Response:
        found = [each for each in self.nodes if each["name"] == request.match_info["name"]]
        return web.json_response(found[0]) if found else _not_found("node", request.match_info["name"])

    async def _gpu(self, request: web.Request) -> web.Response:
        gpu, body = request.match_info["gpu"], await request.json()
        self.bodies.append(body)
        if request.match_info["word"] == "power":
            return web.json_response({"gpu": gpu, "watts": body["watts"] or 700})
        held = request.match_info["word"] == "hold"
        return web.json_response({"subject": gpu, "quarantine": f"operator: {body['reason']}" if held else None})

    async def _bandwidth(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        if not body["force"]:
            return _error(409, "refused", "m-1.0 is Ready on this node", "drain it first, or force the test")
        result = {"method": "rdma", "gigabits_per_second": 391.2, "bytes": 1, "seconds": body["seconds"], "streams": 0}
        ports = {"port": "mlx5_0:1", "peer_port": "mlx5_1:1", "note": ""}
        return web.json_response({"node": request.match_info["node"], "peer": body["peer"], **result, **ports})

    async def _fleet_weights(self, request: web.Request) -> web.Response:
        return web.json_response({"nodes": self.weights, "unreachable": self.silent})

    async def _node_weights(self, request: web.Request) -> web.Response:
        found = [each for each in self.weights if each["node"] == request.match_info["node"]]
        return web.json_response(found[0]) if found else _not_found("node", request.match_info["node"])

    async def _remove_weights(self, request: web.Request) -> web.Response:
        node = next(each for each in self.weights if each["node"] == request.match_info["node"])
        found = next(each for each in node["weights"] if each["key"] == request.match_info["weights"])
        if found["used_by"]:
            return _error(409, "in_use", f"{found['source']} is in use by {found['used_by'][0]}", "stop it")
        return web.json_response({"sources": [found["source"]], "freed_bytes": found["bytes"]})

    async def _weights_steps(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        lines = self.steps.get(request.match_info["node"])
        if lines is None:
            return _not_found("node", request.match_info["node"])
        return web.Response(text="".join(json.dumps(each) + "\n" for each in lines), content_type="application/x-ndjson")

    async def _fabrics(self, request: web.Request) -> web.Response:
        return web.json_response({"fabrics": self.fabrics})

    async def _fabric(self, request: web.Request) -> web.Response:
        found = [each for each in self.fabrics if each["subnet"] == request.match_info["subnet"]]
        return web.json_response(found[0]) if found else _not_found("fabric", request.match_info["subnet"])

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"models": [view for name in list(self.models) if (view := self._view(name))["state"] != "Gone"]}
        )

    async def _get(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return web.json_response(self._view(name)) if name in self.models else _not_found("model", name)

    async def _put(self, request: web.Request) -> web.Response:
        name, spec = request.match_info["name"], await request.json()
        self.bodies.append(spec)
        known = self.models.get(name)
        if known is not None and {**known.spec, "generation": 0} == {**_spec(name, spec), "generation": 0}:
            return web.json_response(self._view(name))
        generation = known.spec["generation"] + 1 if known else 1
        self.models[name] = _Model(_spec(name, spec) | {"generation": generation}, self._scripts.get(name, list(READY)))
        return web.json_response(self._view(name), status=200 if known else 201)

    async def _scale(self, request: web.Request) -> web.Response:
        name, body = request.match_info["name"], await request.json()
        if name not in self.models:
            return _not_found("model", name)
        model = self.models[name]
        model.spec = model.spec | {"replicas": {"min": body["replicas"]}, "generation": model.spec["generation"] + 1}
        many = Step("Ready") if body["replicas"] else Step("Scaled to zero", ready=0, replica=None)
        model.steps = list(self._scripts.get(name, [many]))
        return web.json_response(self._view(name))

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.models:
            return _not_found("model", name)
        removing = Step("Removing", ready=0, replica="Draining")
        self.models[name].steps = self._scripts.get(name, [removing, removing, Step("Gone", gone=True)])
        ids = [each["id"] for each in self._view(name)["replicas"]]
        return web.json_response({"name": name, "replicas": ids}, status=202)

    async def _replicas(self, request: web.Request) -> web.Response:
        wanted = request.query.get("model")
        views = [self._view(name) for name in list(self.models) if wanted in (None, name)]
        return web.json_response({"replicas": [each for view in views for each in view["replicas"]]})

    async def _replica(self, request: web.Request) -> web.Response:
        for name in list(self.models):
            for each in self._view(name)["replicas"]:
                if each["id"] == request.match_info["id"]:
                    return web.json_response(each)
        return _not_found("replica", request.match_info["id"])

    async def _details(self, request: web.Request) -> web.Response:
        if not self.details:
            return _error(502, "agent_unreachable", "the agent of node n1 cannot be asked: it is away", "start it")
        return web.json_response(self.details.pop(0) if len(self.details) > 1 else self.details[0])

    async def _act(self, request: web.Request) -> web.Response:
        replica, word = request.match_info["id"], request.match_info["word"]
        if replica == "nobody":
            return _not_found("replica", replica)
        self.bodies.append(await request.json())
        if word == "restart":
            return web.json_response({"replica": replica, "node": "n1", "attempt": "a1"})
        state = {"drained": word == "drain", "requests": 2, "connections": 3}
        return web.json_response({"replica": replica, "node": "n1", **state})

    async def _telemetry(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        for number in range(int(request.query["count"])):
            await response.write(json.dumps({**self.figures, "at": number}).encode() + b"\n")
        await response.write_eof()
        return response

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["id"] == "nobody":
            return _not_found("replica", "nobody")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        await response.write(self.log)
        if request.query.get("follow"):
            await response.write(b"a later line\n")
        await response.write_eof()
        return response

    def _view(self, name: str) -> dict[str, Any]:
        model = self.models[name]
        step = model.look()
        if step.gone:
            del self.models[name]
        wanted = model.spec["replicas"]["min"]
        replicas = (
            [] if step.replica is None else [replica_view(name, index, step, model.spec) for index in range(max(wanted, 1))]
        )
        for each in replicas:
            each["drained"] = each["id"] in self.drained
        return {
            "name": name,
            "wanted": wanted,
            "ready": wanted if step.ready is None else step.ready,
            "state": step.state,
            "reason": step.reason,
            "spec": None if step.state == "Removing" else model.spec,
            "replicas": replicas,
        }


def replica_view(model: str, index: int, step: Step, spec: dict[str, Any]) -> dict[str, Any]:
    ready = step.replica == "Ready"
    return {
        "id": f"{model.replace('/', '-')}-{index:05d}",
        "model": model,
        "node": "n1",
        "epoch": 1,
        "state": step.replica,
        "reason": step.reason,
        "url": f"http://127.0.0.1:{20_000 + index}" if ready else None,
        "pid": 4711 if ready else None,
        "port": 20_000 + index if ready else None,
        "restarts": step.restarts,
        "started_at": 1_700_000_000.0 if ready else None,
        "next_attempt_at": None,
        "gpus": [],
        "draining": step.replica == "Draining",
        "generation": spec["generation"],
        "engine": "llamacpp",
        "engine_version": "b1",
        "log_path": f"/var/log/{model}.log",
    }


def node_view(name: str, *, alive: bool = True, gpus: int = 0) -> dict[str, Any]:
    """A node with 16 GiB and, if wished, H100s."""
    h100 = {"name": "NVIDIA H100 80GB HBM3", "gpu_class": "H100-80GB", "memory_bytes": 85_520_809_984}
    disk = {"path": "/srv", "total_bytes": 10**12, "free_bytes": 4 * 10**11}
    return {
        "name": name,
        "alive": alive,
        "inventory": {
            "node": name,
            "version": "0.1.0",
            "boot_id": "b",
            "hostname": name,
            "os": "Debian 12",
            "kernel": "6.1",
            "cpu": {"model": "EPYC", "sockets": 1, "cores": 8},
            "memory": {"total_bytes": 16 * 2**30},
            "disks": [disk],
            "gpus": [{"uuid": f"GPU-{index}", **h100} for index in range(gpus)],
            "engines": [{"name": "llamacpp", "version": "b1", "detail": "xllamacpp"}],
            "labels": {"rack": "r1"},
        },
        "status": {"node": name, "updated_at": 1_700_000_000.0, "memory_available_bytes": 8 * 2**30, "load1": 0.5},
        "grpc_address": "127.0.0.1:7090",
        "replicas": [],
        "memory_committed_bytes": 2**30,
    }


def _spec(name: str, given: dict[str, Any]) -> dict[str, Any]:
    base = {"source": "/srv/m.gguf", "profiles": [{"engine": "llamacpp"}], "replicas": {"min": 1}, "generation": 1}
    return base | {"name": name} | given


def _error(status: int, code: str, message: str, remedy: str) -> web.Response:
    body = {"error": {"code": code, "message": message, "remedy": remedy}}
    return web.Response(status=status, text=json.dumps(body), content_type="application/json")


def _not_found(kind: str, name: str) -> web.Response:
    return _error(404, f"{kind}_not_found", f"there is no {kind} {name!r}", f"see `llmgwctl {kind} list`")
