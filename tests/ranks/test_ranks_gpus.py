"""Which GPU a rank gets, and what is refused where there are some: on machines of 8 GPUs that are only told of."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from zerolab.apps.cli.train import read_flags
from zerolab.collectives import Collectives, Link
from zerolab.collectives.ring import LocalCollectives, RingCollectives
from zerolab.collectives.transport import LocalTransport, Transport
from zerolab.errors import InputError
from zerolab.flat.views import same_device
from zerolab.gpu import door
from zerolab.ranks import launch
from zerolab.ranks.job import choose_devices
from zerolab.ranks.process_transport import ProcessTransport
from zerolab.run import RunSpec
from zerolab.zero.start import check_model

ROOT = Path(__file__).resolve().parents[2]
MEETING = {"MASTER_ADDR": "a", "MASTER_PORT": "29500"}
TOLD = {"RANK": "11", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}


@pytest.fixture(autouse=True)
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.delenv("ZEROLAB_DEVICE", raising=False)


@pytest.mark.parametrize("world", ["lockstep", "virtual"])
def test_ranks_that_take_turns_compute_on_the_cpu_and_refuse_a_gpu(world: str) -> None:
    assert choose_devices("auto", 2, world) == (("cpu", "cpu"), "gloo")
    with pytest.raises(InputError, match=rf'device="cuda": .*world="{world}"'):
        choose_devices("cuda", 2, world)
    with pytest.raises(InputError, match='device="cuda"'):
        launch(lambda comm: None, ranks=2, world=world, device="cuda")


@pytest.mark.parametrize("asked", [{"link": Link(gbit_per_s=1.0)}, {"trace": True}], ids=["link", "trace"])
def test_what_goes_by_the_host_s_clock_is_refused_on_gpus(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "zerolab.ranks.processes.ProcessGroupRunner.start", lambda crew: pytest.fail("ranks were started")
    )
    (name,) = asked
    with pytest.raises(InputError, match=f"^{name} is given and the ranks are on cuda:0"):
        launch(lambda comm: None, ranks=2, **asked)
    assert len(launch(lambda comm: comm.rank, ranks=2, world="lockstep", **asked)) == 2


def test_the_environment_says_what_auto_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_devices("auto", 2)[0] == ("cuda:0", "cuda:1")
    monkeypatch.setenv("ZEROLAB_DEVICE", "cpu")
    assert choose_devices("auto", 2)[0] == ("cpu", "cpu")
    assert choose_devices("cuda", 2)[0] == ("cuda:0", "cuda:1")
    monkeypatch.setenv("ZEROLAB_DEVICE", "gpu")
    with pytest.raises(InputError, match="ZEROLAB_DEVICE is 'gpu'; set one of auto, cpu, cuda"):
        choose_devices("auto", 2)


def test_launch_s_own_example_puts_its_tensor_where_the_rank_computes() -> None:
    text = import_module("zerolab.ranks.launch").__doc__
    assert text is not None
    example = "\n".join(line.removeprefix("    ") for line in re.findall(r"^    .*$|^$", text, re.MULTILINE))
    reduced: list[torch.Tensor] = []

    def launched(fn: Any, ranks: int) -> None:
        meta = torch.device("meta")
        fn(SimpleNamespace(rank=1, device=meta, all_reduce=lambda tensor: reduced.append(tensor) or torch.zeros(())))

    exec(example, {"torch": torch, "launch": launched})
    assert [tensor.device.type for tensor in reduced] == ["meta"]


def test_the_lane_of_a_rank_works_on_the_rank_s_gpu_and_opens_no_context_on_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered: list[tuple[str, str]] = []
    note = lambda device: entered.append((threading.current_thread().name, str(device)))  # noqa: E731
    monkeypatch.setattr(torch.cuda, "set_device", note)
    for name in ("cuda:3", "cpu"):
        transport = LocalTransport()
        transport.device = torch.device(name)
        lane = Transport.lane(transport)
        for _ in range(2):
            lane.submit(lambda: None).wait()
        lane.close()
    assert entered == [("zerolab-communication-0_0", "cuda:3")]


def test_a_rank_function_has_ended_when_its_gpu_has_and_an_error_there_is_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before other ranks may end NCCL."""
    done: list[str] = []
    transport = object.__new__(ProcessTransport)
    transport.open = {}
    transport.device = torch.device("cuda:1")
    monkeypatch.setattr(door, "drain", lambda device: done.append(f"{device} drained"))
    transport.check_waited()
    assert done == ["cuda:1 drained"]

    def fails(device: torch.device) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(door, "drain", fails)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        transport.check_waited()
    transport.device = torch.device("cpu")
    transport.check_waited()


def calls_on_import(body: list[ast.stmt]) -> Iterator[str]:
    """What a file calls when it is imported: all calls but those in the bodies of its functions."""
    coming: list[ast.AST] = [*body]
    while coming:
        node = coming.pop()
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        coming += [*node.decorator_list, node.args] if isinstance(node, ast.FunctionDef) else []
        coming += [] if inside else ast.iter_child_nodes(node)


def test_nothing_asks_for_gpus_when_it_is_imported_since_ranks_are_forked_from_who_has_imported_it() -> None:
    """CUDA does not outlive a fork: not even its number of GPUs may be asked for before."""
    asked = {"torch.cuda", "door", "zerolab.gpu.door"}
    found = {
        (path.name, call)
        for path in (ROOT / "zerolab").rglob("*.py")
        for call in calls_on_import(ast.parse(path.read_text()).body)
        if call.rpartition(".")[0] in asked or call in ("seed_all", "choose_devices")
    }
    assert found == set()
    early = "count = torch.cuda.device_count()\ndef f(x=torch.cuda.is_available()):\n    torch.cuda.init()"
    assert sorted(calls_on_import(ast.parse(early).body)) == ["torch.cuda.device_count", "torch.cuda.is_available"]


def test_devices_are_one_only_with_the_same_number() -> None:
    first, second = torch.device("cuda:0"), torch.device("cuda:1")
    assert same_device(first, first) and same_device(torch.device("cuda"), second)
    assert not same_device(first, second) and not same_device(first, torch.device("cpu"))


def test_a_tensor_or_a_model_on_another_gpu_is_refused() -> None:
    class OnSecond(LocalTransport):
        device = torch.device("cuda:1")

    comm: Collectives = LocalCollectives(OnSecond())
    with FakeTensorMode():
        with pytest.raises(InputError, match="all_reduce runs on cuda:1, but the tensor is on cuda:0"):
            comm.all_reduce(torch.empty(4, device="cuda:0"))
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.empty(4, device="cuda:0"))
        with pytest.raises(InputError, match="weight is on cuda:0, the ranks are on cuda:1"):
            check_model(model, comm.device)
        check_model(model, torch.device("cuda:0"))
        model.register_buffer("seen", torch.empty(4, device="cuda:1"))
        with pytest.raises(InputError, match="seen is on cuda:1, the ranks are on cuda:0"):
            check_model(model, torch.device("cuda:0"))


def test_nccl_s_messages_are_batches_all_since_a_batch_and_a_single_message_never_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step of the ring over a tensor shorter than the ring: some send and receive, some only one of it."""
    posted: list[list[Any]] = []
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 3)
    monkeypatch.setattr(dist, "P2POp", lambda op, tensor, group, group_peer: (op, group_peer))
    monkeypatch.setattr(dist, "batch_isend_irecv", lambda ops: posted.append(ops) or [SimpleNamespace(wait=bool)])
    group: Any = SimpleNamespace(group_name="the group")
    comm = RingCollectives(ProcessTransport(group, torch.device("cuda", 0), nccl=True))
    with FakeTensorMode():
        for sent, received in [(1, 1), (1, 0), (0, 1), (0, 0)]:
            comm._pass_on(torch.empty(sent, device="cuda:0"), torch.empty(received, device="cuda:0"))
    to, from_ = (dist.isend, 1), (dist.irecv, 2)
    assert posted == [[from_, to], [to], [from_]]


@pytest.mark.parametrize("ranks", ["8", "16", "24"])
def test_the_train_command_takes_a_batch_that_the_ranks_of_torchrun_divide(
    ranks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**TOLD, **MEETING, "WORLD_SIZE": ranks, "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    line = re.search(r"-m zerolab train (.*)", (ROOT / "README.md").read_text())
    assert line is not None
    for flags in ("--zero-stage 3", "--zero-stage 1 --grad-accum-steps 3", line[1] if ranks != "24" else ""):
        config = RunSpec(**read_flags(flags.split())[0])
        assert config.ranks == int(ranks)
        assert config.batch_size % (config.ranks * config.grad_accum_steps) == 0
