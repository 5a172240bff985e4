"""Which GPU a rank gets, and what is refused where there are some: on machines of 8 GPUs that are only told of."""

from __future__ import annotations

import ast
import itertools
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from zerolab.cli.train import read_flags
from zerolab.collectives import Collectives, Link
from zerolab.collectives.local import LocalCollectives
from zerolab.collectives.ring import RingCollectives
from zerolab.collectives.transport import LocalTransport, Transport
from zerolab.errors import InputError
from zerolab.flat.values import same_device
from zerolab.gpu import door
from zerolab.ranks import launch, torchrun
from zerolab.ranks.devices import choose_devices, device_of_rank
from zerolab.ranks.job import Job
from zerolab.ranks.launchers import adopt, tasks_by_node
from zerolab.ranks.own_gpus import each_has_its_own
from zerolab.ranks.process_transport import ProcessTransport
from zerolab.ranks.requests import OpenRequests
from zerolab.train import make_config
from zerolab.zero.start.checks import check_model

ROOT = Path(__file__).resolve().parents[1]
MEETING = {"MASTER_ADDR": "a", "MASTER_PORT": "29500"}
SLURM = {
    "SLURM_PROCID": "11", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "3", "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_NTASKS": "16",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "11", "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
}  # fmt: skip
MPICH = {"PMI_RANK": "11", "PMI_SIZE": "16", "MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "8"}
TOLD = {"RANK": "11", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}


@pytest.fixture(autouse=True)
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.delenv("ZEROLAB_DEVICE", raising=False)


def adopted(environment: dict[str, str]) -> dict[str, str]:
    adopt(environment)
    return {name: environment[name] for name in TOLD if name in environment}


@pytest.mark.parametrize("said", [SLURM, OPEN_MPI, MPICH, TOLD], ids=["srun", "Open MPI", "MPICH", "torchrun"])
def test_a_rank_of_two_machines_finds_its_gpu_whoever_started_it(said: dict[str, str]) -> None:
    found = adopted({**said, **MEETING})
    assert found == TOLD
    devices, _ = choose_devices("auto", 16)
    assert str(device_of_rank(devices, found)) == "cuda:3"


def test_a_job_script_that_sets_rank_itself_has_the_local_one_from_srun() -> None:
    exported = {"RANK": "11", "WORLD_SIZE": "16", **SLURM, **MEETING}
    assert adopted(exported) == TOLD


def test_an_outer_launcher_of_one_process_a_machine_says_nothing_of_torchrun_s_ranks() -> None:
    torchrun_within = {**TOLD, **SLURM, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
    assert adopted(torchrun_within) == TOLD


def test_a_batch_script_is_no_rank() -> None:
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_LOCALID": "0"}
    one_task = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}
    assert adopted(batch) == adopted(one_task) == {}


@pytest.mark.parametrize(("said", "who"), [(SLURM, "srun"), (OPEN_MPI, "Open MPI's mpirun"), (MPICH, "mpirun")])
def test_ranks_that_cannot_meet_are_told_instead_of_training_alone(said: dict[str, str], who: str) -> None:
    with pytest.raises(InputError, match=f"^{who} has started this process as rank 11 of 16, and MASTER_ADDR and"):
        adopt({**said})
    with pytest.raises(InputError, match="and MASTER_PORT is not set"):
        adopt({**said, "MASTER_ADDR": "a"})


def test_a_rank_that_does_not_know_its_number_on_the_machine_is_refused_where_it_would_take_the_first_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices, _ = choose_devices("cuda", 16)
    unknown = {"RANK": "11", "WORLD_SIZE": "16"}
    with pytest.raises(InputError, match=r"rank 11 of 16 sees 8 GPUs, and LOCAL_RANK is not set"):
        device_of_rank(devices, unknown)
    assert str(device_of_rank(["cpu"], unknown)) == "cpu"
    # CUDA_VISIBLE_DEVICES leaves each process one GPU, or the machine's eight ranks four.
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert str(device_of_rank(devices, unknown)) == "cuda:0"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert [str(device_of_rank(devices, {"LOCAL_RANK": str(rank)})) for rank in (3, 4)] == ["cuda:3", "cuda:0"]


def test_slurm_s_tasks_by_node_are_read() -> None:
    assert tasks_by_node("8(x2),4") == [8, 8, 4]
    assert tasks_by_node("") == tasks_by_node("8(x") == []


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
    monkeypatch.setattr("zerolab.ranks.processes.Crew.start", lambda crew: pytest.fail("ranks were started"))
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
    text = sys.modules["zerolab.ranks.launch"].__doc__
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
    """Before other ranks may end NCCL, and while hangs are still looked for."""
    done: list[str] = []
    transport = object.__new__(ProcessTransport)
    transport._open = OpenRequests()
    transport._unfinished = SimpleNamespace(close=lambda: done.append("watch closed"))  # type: ignore[assignment]
    transport.device = torch.device("cuda:1")
    monkeypatch.setattr(door, "drain", lambda device: done.append(f"{device} drained"))
    transport.check_waited()
    assert done == ["cuda:1 drained", "watch closed"]

    def fails(device: torch.device) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(door, "drain", fails)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        transport.check_waited()
    assert done[2:] == ["watch closed"]
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


# Ranks of two machines that a launcher has started, and who carries their tensors.


def together(gpus: list[str]) -> list[bool | str]:
    """What ranks on these GPUs, "" for the CPU, hear of NCCL, each in a thread of its own, or how they are refused."""
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=20))

    def hears(rank: int) -> bool | str:
        try:
            return each_has_its_own(store, rank, len(gpus), gpus[rank])
        except InputError as error:
            return str(error)

    with ThreadPoolExecutor(len(gpus)) as ranks:
        return [*ranks.map(hears, range(len(gpus)))]


OWN = [f"gpu {rank}" for rank in range(16)]


def test_all_ranks_hear_alike_whether_each_has_a_gpu_and_rank_0_says_who_shares_one(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert together(OWN) == [True] * 16
    assert together([""] * 16) == [False] * 16
    # On the CPU there is nothing to say.
    assert capfd.readouterr().err == ""
    assert together([*OWN[:15], "gpu 3"]) == [False] * 16
    (shared,) = capfd.readouterr().err.splitlines()
    assert shared.startswith("zerolab: ranks 3 and 15 share a GPU, so NCCL cannot join the ranks and messages go by ")


@pytest.mark.parametrize(
    ("gpus", "blind", "other"),
    [([*OWN[:15], ""], 15, 0), (["", *OWN[1:]], 0, 1), ([""] * 4 + OWN[4:], 0, 4), ([*OWN[:3], "", *OWN[:12]], 3, 0)],
    ids=["the last", "the first", "four", "one of several that share"],
)
def test_a_rank_that_sees_no_gpu_where_others_do_is_named_to_all_of_them(
    gpus: list[str], blind: int, other: int
) -> None:
    """Each by itself would choose: shared memory on the CPU, the ring on the GPUs."""
    refused = together(gpus)
    assert len({*refused}) == 1
    assert str(refused[0]).startswith(
        f"rank {blind} is on the CPU, since it sees no GPU or was told so, and rank {other} is on a GPU; give each rank"
    )


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


UUIDS = {"each sees all eight": (8, "cuda:3", True), "each sees one of its own": (1, "cuda:0", True),
         "all see the same one": (1, "cuda:0", False)}  # fmt: skip


@pytest.mark.parametrize("seen", UUIDS)
@pytest.mark.parametrize("there", [False, True], ids=["a new world", "the script's world"])
def test_rank_11_of_two_machines_joins_by_nccl_on_a_gpu_of_its_own_whatever_number_that_has(
    seen: str, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, device, own = UUIDS[seen]
    told: dict[str, Any] = {}
    store = dist.HashStore()
    for rank in range(16):
        store.set(f"zerolab-gpus-0/{rank}", f"gpu {rank}")
    store.set("zerolab-gpus-0/verdict", "nccl " if own else "host ranks 0 and 1 share a GPU")
    world = SimpleNamespace(WORLD="the world")
    for name, value in {**TOLD, **MEETING}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "is_initialized", lambda: there)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **more: told.update(more, backend=backend))
    monkeypatch.setattr(dist, "group", world)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: told.update(set=str(device)))
    monkeypatch.setattr(torchrun.distributed_c10d, "_get_default_store", lambda: store)
    for name, put in {
        "_launches": itertools.count(), "_meeting_place": lambda *_: store, "name_of": lambda device: "gpu 11",
        "carriers": lambda group, nccl: (f"{group} by {'NCCL' if nccl else 'gloo'}", "host"),
        "connect": lambda group, device: told.update(connected=f"{group} from {device}"),
        "_private_pen": lambda size, rank: None,
        "ProcessTransport": lambda group, device, nccl, pen, host: (group, str(device), nccl, host),
    }.items():  # fmt: skip
        monkeypatch.setattr(torchrun, name, put)
    monkeypatch.setattr(dist, "get_rank", lambda *_: 11)
    monkeypatch.setattr(torchrun.parting, "join", lambda: None)
    job = Job(16, 60.0, "auto", choose_devices("cuda", 16)[0], "never read", 1, 1)
    assert torchrun._join(job) == (f"the world by {'NCCL' if own else 'gloo'}", device, own, "host")
    assert told.pop("set") == device
    if there:
        # Only where a world may not be connected yet.
        assert told == ({"connected": f"the world by NCCL from {device}"} if own else {})
    else:
        assert (told["rank"], told["world_size"]) == (11, 16)
        assert told["backend"] == ("cpu:gloo,cuda:nccl" if own else "gloo")
        assert told["device_id"] == (torch.device(device) if own else None)


@pytest.mark.parametrize("ranks", ["8", "16", "24"])
def test_the_train_command_takes_a_batch_that_the_ranks_of_torchrun_divide(
    ranks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**TOLD, **MEETING, "WORLD_SIZE": ranks, "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    line = re.search(r"-m zerolab train (.*)", (ROOT / "README.md").read_text())
    assert line is not None
    for flags in ("--zero-stage 3", "--zero-stage 1 --grad-accum-steps 3", line[1] if ranks != "24" else ""):
        config = make_config(**read_flags(flags.split())[0])
        assert config.ranks == int(ranks)
        assert config.batch_size % (config.ranks * config.grad_accum_steps) == 0
