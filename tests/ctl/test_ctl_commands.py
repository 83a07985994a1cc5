"""Every command against a fake coordinator, run in this process as typer runs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from llmgw_ctl.app import build
from llmgw_ctl.errors import CtlError
from llmgw_testing.fake_admin import TOKEN, FakeAdmin, Step, node_view


class Ctl:
    """Runs ``llmgwctl`` the way its main function does."""

    def __init__(self, admin: FakeAdmin, home: Path) -> None:
        self.admin = admin
        self.home = home
        self._app = build()

    def __call__(self, *args: str, stdin: str = "", expect: int = 0) -> tuple[str, str]:
        """Returns stdout and stderr."""
        env = {"LLMGW_SERVER": self.admin.url, "LLMGW_TOKEN": TOKEN, "HOME": str(self.home), "XDG_CONFIG_HOME": None}
        result = CliRunner().invoke(self._app, args, input=stdin, env=env, prog_name="llmgwctl")
        status, stderr = result.exit_code, result.stderr
        if isinstance(result.exception, CtlError):
            status, stderr = result.exception.exit_code, f"{result.exception.message}\n{result.exception.remedy}"
        elif result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert status == expect, f"{args} ended with {status}:\n{result.stdout}\n{stderr}"
        return result.stdout, stderr


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with FakeAdmin() as admin:
        yield Ctl(admin, tmp_path)


def test_status_for_people(ctl: Ctl) -> None:
    ctl.admin.add("org/m", Step("Degraded", ready=0, reason="a replica is suspect"))
    ctl.admin.problems = ["node n2 is away since 3m"]
    out, _ = ctl("status")
    assert "Cluster:      test (c-1)" in out
    assert "1 of 1 alive" in out
    assert "org/m  Degraded    0/1  a replica is suspect" in out
    assert "node n2 is away since 3m" in out


def test_status_without_models_says_what_to_do_next_on_stderr(ctl: Ctl) -> None:
    out, err = ctl("status")
    assert "llmgwctl model serve" in err
    assert "llmgwctl model serve" not in out


def test_stale_status_is_marked(ctl: Ctl) -> None:
    ctl.admin.stale = True
    assert "cannot reach etcd" in ctl("status")[1]


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("node", "list"),
        ("node", "show", "n1"),
        ("model", "list"),
        ("model", "show", "m"),
        ("replica", "list"),
        ("replica", "list", "--model", "m"),
        ("replica", "show", "m-00000"),
        ("model", "scale", "m", "2"),
        ("model", "serve", "new", "/srv/x.gguf"),
        ("model", "remove", "m"),
        ("version",),
        ("version", "--cluster"),
    ],
)
def test_json_and_yaml_are_pure_data_and_say_the_same(ctl: Ctl, words: tuple[str, ...]) -> None:
    ctl.admin.add("m")
    as_json = json.loads(ctl(*words, "-o", "json")[0])
    ctl.admin.add("m")
    as_yaml = yaml.safe_load(ctl(*words, "-o", "yaml")[0])
    assert type(as_json) is type(as_yaml)
    assert as_json
    if words[0] != "model" or words[1] in ("list", "show"):
        assert as_json == as_yaml


def test_options_before_the_command_count_too(ctl: Ctl) -> None:
    out, _ = ctl("-o", "json", "node", "list")
    assert json.loads(out)[0]["name"] == "n1"
    assert ctl("--server", "http://127.0.0.1:1", "status", expect=3)[1].startswith("cannot reach")
    assert ctl("--server", "http://127.0.0.1:1", "status", "--server", ctl.admin.url)


def test_node_list_and_show(ctl: Ctl) -> None:
    ctl.admin.nodes = [node_view("n2", alive=False), node_view("n1", gpus=8)]
    lines = ctl("node", "list")[0].splitlines()
    assert lines[0].split() == ["NODE", "STATE", "CPUS", "MEMORY", "COMMITTED", "GPUS", "ENGINES", "REPLICAS", "VERSION"]
    assert [line.split()[0] for line in lines[1:]] == ["n1", "n2"]
    assert "8x H100-80GB" in lines[1]
    assert "gone" in lines[2]
    out, _ = ctl("node", "show", "n1")
    assert "16.0 GiB in all, 1.0 GiB committed to replicas, 8.0 GiB available now" in out
    assert out.count("GPU-") == 8


def test_a_node_of_which_only_the_name_is_known(ctl: Ctl) -> None:
    ctl.admin.nodes = [{"name": "n1", "alive": False, "inventory": None, "status": None, "grpc_address": None, "replicas": []}]
    assert "n1    gone" in ctl("node", "list")[0]
    assert "gone" in ctl("node", "show", "n1")[0]


def test_model_list_and_show(ctl: Ctl) -> None:
    ctl.admin.add("b")
    ctl.admin.add("a", Step("Removing", ready=0, replica="Draining"))
    lines = ctl("model", "list")[0].splitlines()
    assert [line.split()[0] for line in lines] == ["MODEL", "a", "b"]
    out, _ = ctl("model", "show", "b")
    assert "/srv/m.gguf" in out
    assert "b-00000" in out


def test_replica_show_and_logs(ctl: Ctl) -> None:
    ctl.admin.add("m")
    assert "pid 4711, port 20000" in ctl("replica", "show", "m-00000")[0]
    assert ctl("replica", "logs", "m-00000")[0] == "first line\nsecond line\n"
    assert ctl("replica", "logs", "m-00000", "-f", "--tail", "5")[0].endswith("a later line\n")
    assert ("GET", "/admin/v1/replicas/m-00000/logs?tail=5&follow=1") in ctl.admin.requests


def test_logs_since_a_time_with_a_match_or_of_a_failure(ctl: Ctl) -> None:
    ctl.admin.add("m")
    ctl("replica", "logs", "m-00000", "--since", "2026-01-31T08:00:00Z", "--grep", "a&b")
    assert ctl.admin.requests[-1] == ("GET", "/admin/v1/replicas/m-00000/logs?tail=0&since=1769846400.0&grep=a%26b")
    ctl("replica", "logs", "m-00000", "--grep", "x")
    assert ctl.admin.requests[-1] == ("GET", "/admin/v1/replicas/m-00000/logs?tail=100&grep=x")
    ctl("replica", "logs", "m-00000", "--file", "first-failure", "--tail", "3")
    assert ctl.admin.requests[-1] == ("GET", "/admin/v1/replicas/m-00000/logs?tail=3&file=first-failure")
    assert "'soon' is neither a duration nor a time" in ctl("replica", "logs", "m-00000", "--since", "soon", expect=2)[1]


@pytest.mark.parametrize(
    "words",
    [
        ("node", "show", "x"),
        ("model", "show", "x"),
        ("model", "scale", "x", "1"),
        ("model", "remove", "x"),
        ("replica", "show", "x"),
        ("replica", "logs", "nobody"),
    ],
)
def test_what_does_not_exist_is_status_4_with_a_remedy(ctl: Ctl, words: tuple[str, ...]) -> None:
    _, err = ctl(*words, expect=4)
    assert f"there is no {words[0]}" in err
    assert f"llmgwctl {words[0]} list" in err


def test_serve_waits_and_tells_the_progress_on_stderr(ctl: Ctl) -> None:
    out, err = ctl("model", "serve", "m", "/srv/m.gguf", "--replicas", "2", "--arg", "-c", "--arg", "4096", "--env", "A=1")
    assert "Progressing" in err
    assert ctl.admin.bodies[0]["profiles"][0]["args"] == ["-c", "4096"]
    assert ctl.admin.bodies[0]["replicas"] == {"min": 2}
    assert out.startswith("model m created")


def test_serve_command_keeps_the_words_after_dashes(ctl: Ctl) -> None:
    ctl("model", "serve", "m", "--no-wait", "--", "python3", "-m", "x", "--port", "{port}", "--", "y")
    profile = ctl.admin.bodies[0]["profiles"][0]
    assert (profile["engine"], profile["command"]) == ("command", ["python3", "-m", "x", "--port", "{port}", "--", "y"])


def test_a_relative_source_is_made_absolute(ctl: Ctl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    ctl("model", "serve", "m", "m.gguf", "--no-wait")
    assert ctl.admin.bodies[0]["source"] == str(tmp_path.resolve() / "m.gguf")


def test_no_wait_returns_at_once(ctl: Ctl) -> None:
    ctl.admin.script("m", Step("Pending", ready=0, replica=None))
    out, _ = ctl("model", "serve", "m", "/srv/m.gguf", "--no-wait")
    assert out == "model m created\n"


def test_a_model_that_cannot_be_placed_is_status_5_with_the_reason(ctl: Ctl) -> None:
    ctl.admin.script("m", Step("Pending", ready=0, replica=None, reason="no node has 40 GiB free; lower memory"))
    _, err = ctl("model", "serve", "m", "/srv/m.gguf", "--settle", "0.2s", expect=5)
    assert "model m does not come up: no node has 40 GiB free; lower memory" in err


def test_a_rejected_model_is_status_5(ctl: Ctl) -> None:
    ctl.admin.script("m", Step("Failed", ready=0, replica="Rejected", reason="/srv/m.gguf does not exist"))
    _, err = ctl("model", "serve", "m", "/srv/m.gguf", "--settle", "0.2s", expect=5)
    assert "/srv/m.gguf does not exist" in err


def test_out_of_time_is_status_5(ctl: Ctl) -> None:
    ctl.admin.script("m", Step("Progressing", ready=0, replica="Fetching"))
    _, err = ctl("model", "serve", "m", "/srv/m.gguf", "--timeout", "0.5s", expect=5)
    assert "not ready after 0.5s" in err


def test_apply_tells_created_changed_unchanged(ctl: Ctl, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("name: m\nsource: /srv/m.gguf\nprofiles: [{engine: llamacpp}]\nreplicas: {min: 1}\n")
    assert ctl("model", "apply", "-f", str(file))[0] == "model m created, 1 of 1 replicas ready\n"
    assert ctl("model", "apply", "-f", str(file))[0] == "model m unchanged, 1 of 1 replicas ready\n"
    assert ctl("model", "apply", "-f", "-", stdin=file.read_text().replace("/srv/m", "/srv/n"))[0].startswith("model m changed")


def test_apply_checks_all_documents_before_it_sends_any(ctl: Ctl) -> None:
    good = '{"name": "a", "source": "/m", "profiles": [{"engine": "llamacpp"}]}'
    _, err = ctl("model", "apply", "-f", "-", stdin=f"{good}\n---\nname: b\n", expect=2)
    assert "profiles: missing" in err or "not JSON" in err
    assert not ctl.admin.bodies


def test_apply_names_the_model_that_the_coordinator_refuses(ctl: Ctl) -> None:
    ctl.admin.answer_all_with(200, b'{"models": []}')
    _, err = ctl("model", "apply", "-f", "nowhere.yaml", expect=2)
    assert "nowhere.yaml" in err


def test_scale_and_remove_wait(ctl: Ctl) -> None:
    ctl.admin.add("m")
    assert ctl("model", "scale", "m", "3")[0] == "model m: 3 of 3 replicas ready\n"
    assert ctl("model", "scale", "m", "0")[0] == "model m: 0 of 0 replicas ready\n"
    assert ctl("model", "remove", "m")[0] == "model m removed\n"
    assert "m" not in ctl.admin.models


def test_remove_tells_which_replicas_stop(ctl: Ctl) -> None:
    ctl.admin.add("org/m")
    out, _ = ctl("model", "remove", "org/m", "--no-wait", "-o", "json")
    assert json.loads(out) == {"name": "org/m", "replicas": ["org-m-00000"]}


@pytest.mark.parametrize(
    "words",
    [
        ("model", "scale", "m", "-1"),
        ("model", "scale", "m", "many"),
        ("model", "serve"),
        ("nonsense",),
        ("status", "-o", "xml"),
        ("model", "serve", "m", "/m", "--timeout", "soon"),
        ("model", "apply"),
        ("model", "serve", "m"),
    ],
)
def test_wrong_usage_is_status_2(ctl: Ctl, words: tuple[str, ...]) -> None:
    ctl(*words, expect=2)


def test_version(ctl: Ctl) -> None:
    from llmgw_proto import __version__

    assert __version__ in ctl("version")[0]
    assert ctl("--version")[0] == f"llmgwctl {__version__}\n"
    lines = ctl("version", "--cluster")[0].splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["PROGRAM", "agent", "coordinator", "router"]


# --- replicas over several nodes ---------------------------------------------------------------------------------------------


def over(*nodes: str) -> dict[str, object]:
    """A replica as the coordinator shows it."""
    shards = [
        {
            "shard": f"m-1.{rank}",
            "rank": rank,
            "role": "worker" if rank else "head",
            "node": name,
            "state": "Starting",
            "reason": "waiting for the head" if rank else "",
            "pid": 40 + rank,
            "port": None,
            "phase": "prepared",
            "attempt": 2,
            "gpus": ["g0", "g1"],
            "log_path": "/var/log/m.log",
        }
        for rank, name in enumerate(nodes)
    ]
    return {"id": "m-1", "model": "m", "node": nodes[0], "nodes": list(nodes), "state": "Starting", "shards": shards}


@pytest.mark.parametrize(
    ("nodes", "shown"), [(("n1",), "n1"), (("n1", "n2"), "n1 + n2"), (("n1", "n2", "n3", "n4"), "n1 (+3)")]
)
def test_a_replica_over_nodes_is_one_row(ctl: Ctl, nodes: tuple[str, ...], shown: str) -> None:
    ctl.admin.answer_all_with(200, json.dumps({"replicas": [over(*nodes)]}).encode())
    (row,) = ctl("replica", "list")[0].splitlines()[1:]
    assert [each.strip() for each in row.split("  ") if each.strip()][:4] == ["m-1", "m", shown, "Starting"]
    assert json.loads(ctl("replica", "list", "-o", "json")[0])[0]["shards"] == over(*nodes)["shards"]


def test_replica_show_has_a_row_for_each_shard_of_several(ctl: Ctl) -> None:
    ctl.admin.answer_all_with(200, json.dumps(over("n1", "n2")).encode())
    out = ctl("replica", "show", "m-1")[0]
    assert "Nodes:" in out
    assert "n1, n2" in out
    head, worker = [line.split() for line in out.splitlines()[-2:]]
    assert head == ["0", "head", "n1", "Starting", "prepared", "2", "40", "2", "-"]
    assert worker == ["1", "worker", "n2", "Starting", "prepared", "2", "41", "2", "waiting", "for", "the", "head"]
    ctl.admin.answer_all_with(200, json.dumps(over("n1")).encode())
    assert "RANK" not in ctl("replica", "show", "m-1")[0]


def test_node_show_lists_the_replicas_of_which_it_has_a_shard(ctl: Ctl) -> None:
    both = {**node_view("n2"), "replicas": [over("n1", "n2"), {**over("n3"), "id": "other-1"}]}
    ctl.admin.answer_all_with(200, json.dumps(both).encode())
    out = ctl("node", "show", "n2")[0]
    assert "n1 + n2" in out
    assert "other-1" not in out


def test_the_log_of_another_shard_can_be_asked_for(ctl: Ctl) -> None:
    ctl.admin.add("m")
    ctl("replica", "logs", "m-00000", "--rank", "1")
    assert ctl.admin.requests[-1] == ("GET", "/admin/v1/replicas/m-00000/logs?tail=100&rank=1")


def test_serve_over_several_nodes(ctl: Ctl) -> None:
    words = ("--engine", "vllm", "--nodes", "2", "--gpus", "8", "--gpu-class", "H100-80GB")
    ctl("model", "serve", "m", "hf:org/m", *words, "--no-wait")
    profile = ctl.admin.bodies[0]["profiles"][0]
    assert (profile["nodes"], profile["gpus"], profile["gpu_class"]) == (2, 8, "H100-80GB")
    assert "over 2 nodes, 8 GPUs of class H100-80GB" in ctl("model", "show", "m")[0]
    assert (
        "nodes: engine 'command' runs on one node"
        in ctl("model", "serve", "m", "--nodes", "2", "--", "x", "{port}", expect=2)[1]
    )
    assert "set gpus too" in ctl("model", "serve", "m", "/m", "--gpu-class", "H100-80GB", expect=2)[1]
