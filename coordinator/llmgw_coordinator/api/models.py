"""``/admin/v1/models``."""

from __future__ import annotations

from aiohttp import web

from llmgw_coordinator.api import audit
from llmgw_coordinator.api.bodies import checked, checked_model, read_object
from llmgw_coordinator.api.context import Context
from llmgw_coordinator.api.present import model_view, model_views
from llmgw_coordinator.api.problems import ApiError, not_found
from llmgw_coordinator.api.routes import Route, as_json
from llmgw_coordinator.api.shapes import ModelList, ModelView, Removal, ScaleBody
from llmgw_coordinator.specs import Written
from llmgw_coordinator.state.view import View
from llmgw_proto.records import BadRecordError
from llmgw_proto.records.model import StrictModelSpec

_PATH = "/admin/v1/models"
#: How long an answer waits for the mirror to show what was written, so that the next question finds it.
_ECHO_SECONDS = 2.0


class Models:
    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        one = _PATH + "/{name}"
        return [
            Route("GET", _PATH, "listModels", "All models with their replicas", self._list, {200: ModelList}),
            Route("GET", one, "getModel", "One model", self._get, {200: ModelView}, errors=(404,)),
            Route(
                "PUT",
                one,
                "applyModel",
                "Makes the model, or changes it to what is sent",
                self._put,
                {200: ModelView, 201: ModelView},
                body=StrictModelSpec,
                errors=(400, 409, 413, 422),
            ),
            Route(
                "POST",
                one + "/scale",
                "scaleModel",
                "Sets how many replicas are wished",
                self._scale,
                {200: ModelView},
                body=ScaleBody,
                errors=(400, 404, 409, 422),
            ),
            Route(
                "DELETE",
                one,
                "removeModel",
                "Removes the model; its replicas drain and stop",
                self._delete,
                {202: Removal},
                errors=(404, 409),
            ),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        return as_json(ModelList(models=model_views(self._context.facts())))

    async def _get(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        found = model_view(self._context.facts(), name)
        if found is None:
            raise not_found("model", name, see="model list")
        return as_json(found)

    async def _put(self, request: web.Request) -> web.Response:
        spec = checked_model(request.match_info["name"], await read_object(request))
        self._context.require_writable()
        facts = self._context.facts()
        written = await self._context.specs.put(spec.record())
        _note(request, written)
        await self._shown(written)
        view = model_view(facts, spec.name, fresh=written.spec)
        assert view is not None
        return as_json(view, status=201 if written.created else 200)

    async def _scale(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        body = checked(ScaleBody, await read_object(request))
        self._context.require_writable()
        facts = self._context.facts()
        try:
            written = await self._context.specs.scale(name, body.replicas)
        except BadRecordError as error:
            raise ApiError(
                409, "unreadable_spec", f"the stored spec cannot be read: {error}", "apply the model again"
            ) from error
        if written is None:
            raise not_found("model", name, see="model list")
        _note(request, written)
        await self._shown(written)
        view = model_view(facts, name, fresh=written.spec)
        assert view is not None
        return as_json(view)

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self._context.require_writable()
        view = model_view(self._context.facts(), name)
        replicas = [each.id for each in view.replicas] if view is not None else []
        existed = await self._context.specs.delete(name)
        if not existed and not replicas:
            raise not_found("model", name, see="model list")
        await self._context.mirror.shows(lambda view: name not in view.models, within=_ECHO_SECONDS)
        return as_json(Removal(name=name, replicas=replicas), status=202)

    async def _shown(self, written: Written) -> None:
        def check(view: View) -> bool:
            stored = view.models.get(written.spec.name)
            return stored is not None and stored.record.generation >= written.spec.generation

        await self._context.mirror.shows(check, within=_ECHO_SECONDS)


def _note(request: web.Request, written: Written) -> None:
    spec = written.spec
    audit.tell(
        request,
        model=spec.name,
        generation=spec.generation,
        replicas=spec.replicas.min,
        changed=written.created or written.changed,
    )
