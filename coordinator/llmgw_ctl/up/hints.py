"""What ``up`` tells once it serves: where, and lines to try it with. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from llmgw_ctl.up.layout import Layout

QUESTION = "Why is the sky blue? Answer in one sentence."


def curl_line(router_url: str, model: str, question: str = QUESTION) -> str:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": question}]}, ensure_ascii=False)
    return f"curl {router_url}/v1/chat/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}"


def openai_snippet(router_url: str, model: str, question: str = QUESTION) -> str:
    return "\n".join(
        (
            "from openai import OpenAI",
            "",
            f'client = OpenAI(base_url="{router_url}/v1", api_key="unused")',
            f"stream = client.chat.completions.create(model={json.dumps(model)}, stream=True,",
            f'    messages=[{{"role": "user", "content": {json.dumps(question, ensure_ascii=False)}}}])',
            "for chunk in stream:",
            '    print(chunk.choices[0].delta.content or "", end="", flush=True)',
        )
    )


def summary(layout: Layout, router_url: str, admin_url: str, models: Sequence[str], *, stays: bool, found: bool = True) -> str:
    """``stays``: whether it now serves until it is stopped; ``found``: whether llmgwctl finds it without being told where."""
    way = f"llmgwctl --server {admin_url} --token-file {shlex.quote(str(layout.token))}"
    lines = [
        "",
        "llmgw is up.",
        "",
        f"  OpenAI API  {router_url}/v1",
        f"  Admin API   {admin_url}  ({'llmgwctl on this machine finds it by itself' if found else way})",
        f"  Models      {', '.join(models) or 'none yet'}",
        f"  Logs        {layout.logs}",
        "",
    ]
    if models:
        lines += [
            "Try it with curl:",
            "",
            f"  {curl_line(router_url, models[0])}",
            "",
            "or with Python (pip install openai):",
            "",
        ]
        lines += [f"  {line}".rstrip() for line in openai_snippet(router_url, models[0]).splitlines()]
    else:
        lines += ["Serve a model from another terminal:", "", "  llmgwctl model serve NAME /path/to/model.gguf"]
    lines.append("")
    if stays:
        lines += ["Ctrl-C stops everything; the models are kept for the next start.", ""]
    return "\n".join(lines)
