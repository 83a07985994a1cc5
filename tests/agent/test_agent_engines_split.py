"""Replicas over several GPUs and nodes: the command lines and environments of vLLM and SGLang, and what cannot be split."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.engines.base import Available, Checked, Gang, Host, Launch, Located, Member, Place
from llmgw_agent.engines.fabric import fabric_environment, interface_of, nearest_cards
from llmgw_agent.engines.hf_folder import check_hf
from llmgw_agent.engines.sglang import Sglang
from llmgw_agent.engines.split import Split, check_split, older, split_of
from llmgw_agent.engines.vllm import Vllm
from llmgw_agent.errors import RejectedError
from llmgw_agent.install.recipes import RECIPES
from llmgw_agent.install.shelf import Shelf
from llmgw_agent.weights import ModelFacts
from llmgw_proto.records import AssignmentRecord

GIB = 1 << 30
VLLM, SGLANG = Vllm(Shelf()), Sglang(Shelf())
HOST = Host(memory_limit=1 << 40, memory_free=1 << 40, gpu_memory={"a": 80 * GIB, "b": 80 * GIB, "small": 24 * GIB})
MEMBERS = (Member("n1", "10.0.0.1", 29500), Member("n2", "10.0.0.2", 0), Member("n3", "fd00::3", 0))
TOPOLOGY: dict[str, Any] = {
    "nccl_env": {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_3:1", "NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0"},
    "netdevs": [
        {"name": "eth0", "addresses": ["192.168.0.5/24", "fe80::1/64"]},
        {"name": "ib0", "addresses": ["10.0.0.1/16", "fd00::3/64"]},
    ],
    "hcas": [
        {"name": "mlx5_0", "pci": "0000:18:00.0"},
        {"name": "mlx5_1", "pci": "0000:19:00.0"},
        {"name": "mlx5_3", "pci": "0000:3b:00.0"},
    ],
    "gpus": [{"uuid": "a", "pci": "0000:1b:00.0"}, {"uuid": "b", "pci": "0000:43:00.0"}, {"uuid": "c", "pci": "0000:52:00.0"}],
    "gpu_nics": {"a": ["mlx5_1", "mlx5_0"], "b": ["mlx5_3"], "c": ["mlx5_1"]},
}


def wish(engine: str = "vllm", **fields: Any) -> AssignmentRecord:
    data: dict[str, Any] = {"shard": "m-1.0", "replica": "m-1", "model": "org/m", "epoch": 1, "engine": engine}
    return AssignmentRecord(**(data | fields))


def launched(driver: Vllm | Sglang, rank: int, nodes: int = 2, version: str = "0.32.0", **fields: Any) -> Launch:
    """Of one rank, as its node would start it."""
    more = {name: fields.pop(name) for name in ("fabric", "nearest_cards") if name in fields}
    members = MEMBERS[:nodes]
    place = Place("127.0.0.1", 4321, "key", Gang(rank, 1, members), **more)
    located = Located(version, "", ("/e/1.0-abc/bin/python", *RECIPES[driver.name].arguments))
    one = wish(driver.name, rank=rank, peers=[each.node for each in members], **fields)
    return driver.launch(one, located, Checked(Path("/w"), 0), place)


def words(launch: Launch) -> str:
    return " ".join(launch.argv)


@pytest.mark.parametrize(
    ("gpus", "nodes", "expected"),
    [(0, 0, Split()), (2, 0, Split(2)), (8, 2, Split(8, 2, 2)), (1, 4, Split(1, 4, 4)), (0, 2, Split(2, 1, 2))],
)
def test_tensors_are_split_inside_a_node_and_layers_over_nodes(gpus: int, nodes: int, expected: Split) -> None:
    peers = [f"n{each}" for each in range(nodes)]
    assert split_of(wish(gpus=[f"g{each}" for each in range(gpus)], peers=peers)) == expected


def test_the_head_of_vllm_serves_and_the_others_follow() -> None:
    head, worker = (launched(VLLM, rank, gpus=["a", "b"]) for rank in (0, 1))
    assert "-m vllm.entrypoints.openai.api_server --model /w " in words(head)
    both = "--tensor-parallel-size 2 --pipeline-parallel-size 2 --nnodes 2"
    assert f"--host 127.0.0.1 --port 4321 {both} --node-rank 0 --master-addr 10.0.0.1 --master-port 29500" in words(head)
    assert "--headless" not in head.argv
    assert worker.argv[0] == "/e/1.0-abc/bin/python"
    assert Path(worker.argv[1]).is_file()
    expected = f"/w --served-model-name org/m {both} --node-rank 1 --master-addr 10.0.0.1 --master-port 29500 --headless"
    assert words(worker).startswith(f"{worker.argv[0]} {worker.argv[1]} {expected}")
    assert "--port" not in worker.argv
    assert (head.environment["VLLM_HOST_IP"], worker.environment["VLLM_HOST_IP"]) == ("10.0.0.1", "10.0.0.2")


def test_without_gpus_a_node_is_one_process() -> None:
    line = words(launched(VLLM, 0, nodes=3))
    assert "--tensor-parallel-size 3 --nnodes 3" in line
    assert "--pipeline-parallel-size" not in line


def test_sglang_tells_every_node_the_same_but_its_rank() -> None:
    for rank in (0, 1, 2):
        launch = launched(SGLANG, rank, nodes=3, gpus=["a", "b"], version="0.5.23")
        split = "--tensor-parallel-size 2 --pipeline-parallel-size 3"
        assert f"{split} --nnodes 3 --node-rank {rank} --dist-init-addr 10.0.0.1:29500" in words(launch)
        assert launch.environment["SGLANG_HOST_IP"] == MEMBERS[rank].address


def test_sglang_puts_an_ipv6_address_into_brackets() -> None:
    place = Place("::1", 4321, "key", Gang(0, 1, (replace(MEMBERS[2], port=7), MEMBERS[0])))
    located = Located("0.5.23", "", ("/e/bin/python",))
    one = wish("sglang", peers=["n3", "n1"])
    assert "--dist-init-addr [fd00::3]:7" in words(SGLANG.launch(one, located, Checked(Path("/w"), 0), place))


def test_a_node_that_is_known_by_a_name_finds_its_own_address() -> None:
    members = (Member("n1", "gpu1.example", 29500), Member("n2", "gpu2.example", 0))
    for driver, variable in ((VLLM, "VLLM_HOST_IP"), (SGLANG, "SGLANG_HOST_IP")):
        place = Place("0.0.0.0", 4321, "key", Gang(1, 1, members), {"GLOO_SOCKET_IFNAME": "ib0"})
        one = wish(driver.name, rank=1, peers=["n1", "n2"])
        launch = driver.launch(one, Located("0.32.0", "", ("/e/bin/python",)), Checked(Path("/w"), 0), place)
        assert variable not in launch.environment
        assert launch.environment["GLOO_SOCKET_IFNAME"] == "ib0"
        assert "gpu1.example" in words(launch)


@pytest.mark.parametrize("version", ["0.11.0", "0.10.2", "0.9", "0.11.0+cu129"])
def test_a_vllm_that_knows_no_nodes_is_named(version: str) -> None:
    with pytest.raises(
        RejectedError, match=r"nodes: vLLM 0\..* cannot spread a model over nodes; use version 0\.11\.1 or newer"
    ):
        launched(VLLM, 0, version=version)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.11.0", True), ("0.11.1", False), ("0.11.1rc2", False), ("0.32.0+cpu", False), ("1.0", False), ("mine", False)],
)
def test_versions_are_compared_number_by_number(version: str, expected: bool) -> None:
    assert older(version, (0, 11, 1)) is expected


def test_the_fabric_of_the_node_goes_before_defaults_and_after_the_user() -> None:
    fabric = {"NCCL_IB_HCA": "=mlx5_0:1", "GLOO_SOCKET_IFNAME": "ib0"}
    cards = {"0000:1b:00.0": "0000:18:00.0", "0000:43:00.0": "0000:3b:00.0"}
    mine = {"NCCL_IB_HCA": "=mlx5_7:1", "VLLM_HOST_IP": "10.9.9.9"}
    environment = launched(VLLM, 1, gpus=["a"], env=mine, fabric=fabric, nearest_cards=cards).environment
    assert environment["NCCL_IB_HCA"] == "=mlx5_7:1"
    assert environment["VLLM_HOST_IP"] == "10.9.9.9"
    assert environment["GLOO_SOCKET_IFNAME"] == "ib0"
    assert environment["VLLM_GPU_NIC_PCIE_MAPPING"] == "0000:1b:00.0=0000:18:00.0,0000:43:00.0=0000:3b:00.0"
    assert environment["VLLM_NIC_SELECTION_VARS"] == "UCX_NET_DEVICES:1"
    older_one = launched(VLLM, 1, gpus=["a"], version="0.12.0", fabric=fabric, nearest_cards=cards).environment
    assert "VLLM_GPU_NIC_PCIE_MAPPING" not in older_one
    assert launched(SGLANG, 1, fabric=fabric).environment["GLOO_SOCKET_IFNAME"] == "ib0"


def test_a_replica_on_one_node_is_told_nothing_of_a_fabric() -> None:
    place = Place("127.0.0.1", 1, "key", fabric={"NCCL_IB_HCA": "=mlx5_0:1"}, nearest_cards={"x": "y"})
    for driver in (VLLM, SGLANG):
        located = Located("0.32.0", "", ("/e/bin/python",))
        environment = driver.launch(wish(driver.name, gpus=["a"]), located, Checked(Path("/w"), 0), place).environment
        assert not {"NCCL_IB_HCA", "VLLM_HOST_IP", "SGLANG_HOST_IP", "VLLM_GPU_NIC_PCIE_MAPPING"} & environment.keys()


def test_the_interface_is_the_one_that_the_members_know_each_other_by() -> None:
    assert fabric_environment(TOPOLOGY, "10.0.0.1") == {
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_3:1",
        "NCCL_SOCKET_IFNAME": "=ib0",
        "GLOO_SOCKET_IFNAME": "ib0",
    }
    assert fabric_environment(TOPOLOGY, "172.16.0.1") == TOPOLOGY["nccl_env"]
    assert fabric_environment({}, "172.16.0.1") == {}


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.168.0.5", "eth0"),
        ("fd00:0::3", "ib0"),
        ("127.0.0.1", "lo"),
        ("::1", "lo"),
        ("8.8.8.8", None),
        ("host.example", None),
    ],
)
def test_interfaces_are_found_by_address(address: str, expected: str | None) -> None:
    assert interface_of(TOPOLOGY, address) == expected


def test_cards_are_named_only_when_every_gpu_has_one_that_may_be_used() -> None:
    # mlx5_1 is not among the ports for NCCL, be it slow or in quarantine.
    assert nearest_cards(TOPOLOGY, ["a", "b"]) == {"0000:1b:00.0": "0000:18:00.0", "0000:43:00.0": "0000:3b:00.0"}
    assert nearest_cards(TOPOLOGY, ["a", "c"]) == {}
    assert nearest_cards(TOPOLOGY, ["elsewhere"]) == {}
    assert nearest_cards({}, ["a"]) == {}


@pytest.mark.parametrize(
    ("split", "heads", "layers", "says"),
    [
        (Split(4), 6, None, "gpus: the model's 6 attention heads cannot be split over 4 GPUs; take 3"),
        (Split(5, 1, 5), 32, None, "nodes: the model's 32 attention heads cannot be split over 5 nodes without GPUs; take 4"),
        (Split(2, 4, 4), 32, 3, "nodes: the model's 3 layers cannot be split over 4 nodes; take 3 nodes at most"),
    ],
)
def test_what_cannot_be_split_is_told_with_what_can(split: Split, heads: int, layers: int | None, says: str) -> None:
    with pytest.raises(RejectedError) as caught:
        check_split(split, heads, layers)
    assert says in str(caught.value)


@given(heads=st.integers(1, 200), tensor=st.integers(1, 64))
def test_the_proposed_number_divides(heads: int, tensor: int) -> None:
    try:
        check_split(Split(tensor), heads, None)
    except RejectedError as error:
        proposed = int(str(error).split("; take ")[1].split()[0])
        assert heads % tensor
        assert heads % proposed == 0
        assert proposed < tensor
    else:
        assert heads % tensor == 0


def facts(size: int, **fields: Any) -> ModelFacts:
    return ModelFacts(format="safetensors", weights_bytes=size, **fields)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 8, "num_hidden_layers": 4}))
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(b"0" * 1000)
    return tmp_path


@pytest.mark.parametrize("driver", [VLLM, SGLANG])
def test_weights_that_no_gpu_can_hold_are_refused_before_anything_starts(driver: Vllm | Sglang, folder: Path) -> None:
    def check(size: int, *gpus: str, nodes: int = 1, args: tuple[str, ...] = ()) -> None:
        peers = [f"n{each}" for each in range(nodes)] if nodes > 1 else []
        one = wish(driver.name, source=str(folder), gpus=list(gpus), peers=peers, args=list(args))
        driver.check(one, HOST, Available(folder, facts(size)))

    check(70 * GIB, "a")
    with pytest.raises(RejectedError) as caught:
        check(140 * GIB, "a")
    assert "has to hold about 140.0 GiB of weights, and of the 80.0 GiB of a GPU here" in str(caught.value)
    assert "use more or larger GPUs, more nodes, or a smaller quantisation" in str(caught.value)
    check(140 * GIB, "a", "b")
    check(280 * GIB, "a", "b", nodes=2)
    with pytest.raises(RejectedError, match=r"of the 24\.0 GiB of a GPU here"):
        check(140 * GIB, "a", "small")
    with pytest.raises(RejectedError, match="or raise --"):
        check(70 * GIB, "a", args=(f"{driver.memory_flag}=0.5",))
    # What makes weights smaller than their files, and GPUs of unknown size, are the engine's to judge.
    check(140 * GIB, "a", args=("--quantization", "fp8"))
    check(140 * GIB, "unknown")


def test_heads_and_layers_of_the_headers_go_before_those_of_the_config(folder: Path) -> None:
    one = wish(source=str(folder), gpus=["a", "b"])
    VLLM.check(one, HOST)
    with pytest.raises(RejectedError, match="7 attention heads"):
        VLLM.check(one, HOST, Available(folder, facts(1, heads=7)))
    with pytest.raises(RejectedError, match="4 layers cannot be split over 5 nodes"):
        VLLM.check(wish(source=str(folder), gpus=["a"], peers=list("abcde")), HOST)


def test_host_memory_of_a_node_counts_its_share_of_the_weights(folder: Path) -> None:
    def need(**fields: Any) -> int:
        return VLLM.check(wish(source=str(folder), **fields), HOST, Available(folder, facts(40 * GIB))).memory_bytes

    alone = need()
    assert 48 * GIB < alone < 52 * GIB
    assert need(peers=["n1", "n2"]) == pytest.approx(alone - 22 * GIB, abs=GIB)
    assert need(gpus=["a"]) < 8 * GIB
    assert need(args=["--kv-cache-memory-bytes", "10G"]) == pytest.approx(alone + 6 * GIB, abs=1)
    assert need(args=["--kv-cache-memory-bytes=2.5g"]) == pytest.approx(alone - 4 * GIB + 2.5e9, abs=1)


def test_a_cache_that_the_user_sized_is_not_sized_again() -> None:
    one = wish(args=["--kv-cache-memory-bytes", "1G"])
    located = Located("0.32.0", "", ("/e/bin/python",))
    environment = VLLM.launch(one, located, Checked(Path("/w"), 0), Place("127.0.0.1", 1, "key")).environment
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment


def test_the_same_weights_in_other_formats_are_counted_once(folder: Path) -> None:
    for name in ("consolidated.safetensors", "pytorch_model.bin", "original.pth"):
        (folder / name).write_bytes(b"0" * 5000)
    assert check_hf(folder, "vLLM", weights_needed=True).size == 1000
    (folder / "model-00001-of-00001.safetensors").unlink()
    assert check_hf(folder, "vLLM", weights_needed=True).size == 5000
    (folder / "consolidated.safetensors").unlink()
    assert check_hf(folder, "vLLM", weights_needed=True).size == 10000
