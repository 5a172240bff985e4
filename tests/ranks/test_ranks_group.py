"""Ranks that somebody else has started and joined: `from_process_group`."""

import json
import math
import sys
from datetime import timedelta
from types import SimpleNamespace

import born
import group_ranks
import pytest
import torch
import torch.distributed as dist

from zerolab.collectives import Link, build, torch_
from zerolab.collectives.transport import Transport, WrappedTransport
from zerolab.errors import InputError, MismatchError
from zerolab.ranks import from_process_group, join, launch
from zerolab.ranks.child import SPARE_SECONDS
from zerolab.ranks.job import Job
from zerolab.ranks.process_transport import ProcessTransport

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(240)]


def spawn(function, folder, ranks):
    born.spawn(function, str(folder), ranks, ranks=ranks)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def test_an_engine_in_a_group_of_the_script_s_own_trains_as_one_process_and_leaves_the_group(tmp_path):
    names = [f"{kind}Collectives {stage}" for kind in ("SharedMemory", "Ring", "Torch") for stage in (0, 3)]
    if sys.platform != "linux":
        names = [name.replace("SharedMemory", "Ring") for name in names]
    for found in spawn(group_ranks.stages_in_a_group, tmp_path, 2):
        assert found.pop("sum") == 1.0
        assert found.keys() == set(names)
        assert max(found.values()) < 1e-6


def test_a_part_of_the_world_is_a_world_of_its_own(tmp_path):
    outsider, *members = spawn(group_ranks.part_of_a_world, tmp_path, 3)
    assert all("Invalid process group" in refusal for refusal in outsider.values())
    for at, member in enumerate(members):
        assert list(member.values()) == [[at, 2, [0, 1, 1, 2], 3.0, 2]] * 3


def test_messages_of_two_comms_of_one_group_never_meet(tmp_path):
    assert spawn(group_ranks.two_comms_at_once, tmp_path, 2) == [[[12.0], [14.0]]] * 2


def test_under_torchrun_a_script_may_make_the_group_itself(tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = born.ran(*torchrun, group_ranks.__file__, tmp_path, capture_output=True, text=True, timeout=80)
    assert done.returncode == 0, done.stderr
    assert all(json.loads((tmp_path / f"{rank}.json").read_text()) < 1e-6 for rank in range(2))


@pytest.fixture
def group_of_one(tmp_path):
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1, timeout=timedelta(seconds=77)
    )
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"collectives": "rings"}, "no collectives 'rings'; choose one of shared, ring"),
        ({"device": "cuda:0", "link": Link(gbit_per_s=1.0)}, "link is given and the ranks are on cuda:0"),
        ({"device": "cuda:0", "trace": True}, "trace is given and the ranks are on cuda:0"),
    ],
)
def test_what_cannot_be_is_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        from_process_group(**arguments)


@pytest.mark.usefixtures("group_of_one")
def test_a_group_of_one_needs_nobody():
    comm = from_process_group()
    assert (comm.rank, comm.size, comm.device) == (0, 1, torch.device("cpu"))


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(
    ("given", "together", "chosen"),
    [
        ({}, True, "shared"),
        ({}, False, "ring"),
        ({"link": Link(gbit_per_s=1.0)}, True, "ring"),
        ({"collectives": "torch"}, True, "torch"),
        ({"device": "cuda:0"}, False, "torch"),
        ({"device": "cuda:0", "collectives": "ring"}, False, "ring"),
    ],
)
def test_auto_is_shared_memory_on_one_machine_nccl_on_gpus_and_the_ring_on_a_link(given, together, chosen, monkeypatch):
    monkeypatch.setattr(join, "ProcessTransport", lambda *args, **_: SimpleNamespace(size=2))
    monkeypatch.setattr(join, "hold_alike", lambda transport: together)
    monkeypatch.setattr(join, "build", lambda transport, impl, **rest: impl)
    monkeypatch.setattr(join, "backends_of", lambda group: {"cpu": "gloo", "cuda": "nccl"})
    monkeypatch.setattr(torch_, "backends_of", join.backends_of)
    connected = []
    monkeypatch.setattr(join, "connect", lambda group, device: connected.append(str(device)))
    assert from_process_group(**given) == chosen
    # A script's NCCL makes its connections in the first call of all ranks, which a message of two must not be.
    assert connected == ([given["device"]] if "device" in given else [])


@pytest.mark.parametrize("possible", [True, False])
def test_ranks_share_a_machine_only_where_they_can_open_each_other_s_memory(possible, monkeypatch):
    monkeypatch.setattr(join, "is_possible", lambda: possible)
    monkeypatch.setattr(join, "host_number", lambda: 7)
    shared = launch(join.hold_alike, ranks=2, world="lockstep", collectives="transport", timeout=60)
    assert shared == [possible] * 2


def on_a_gpu_here_alone(comm):
    """What a rank hears where rank 1 alone finds a GPU."""
    own = torch.device("cuda:0" if comm.rank == 1 else "cpu")
    join.choose_device = lambda device, backends: own
    try:
        from_process_group()
    except InputError as error:
        return str(error)


def test_ranks_on_a_gpu_and_on_the_cpu_hear_that_together_instead_of_choosing_each_for_itself():
    refused = launch(on_a_gpu_here_alone, ranks=3, collectives="transport", device="cpu", timeout=60)
    assert len({*refused}) == 1
    assert refused[0].startswith(
        "rank 0 of the group is on the CPU, since it sees no GPU or was told so, and rank 1 is"
    )


# NCCL, as far as it shows without a GPU: what is said of its groups is told, what travels between hosts is real


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(
    ("backends", "nccl", "made"),
    [
        ({"cpu": "gloo", "cuda": "nccl"}, True, []),
        ({"cuda": "nccl"}, True, ["gloo"]),
        ({"cpu": "gloo"}, True, ["nccl"]),
        ({"cpu": "gloo", "cuda": "gloo"}, True, ["nccl"]),
        ({"cpu": "gloo"}, False, []),
        ({"cuda": "nccl"}, False, ["gloo"]),
    ],
)
def test_a_group_that_lacks_a_backend_gets_one_beside_it_and_only_once(backends, nccl, made, monkeypatch):
    asked = []
    monkeypatch.setattr(torch_, "backends_of", lambda group: backends)
    monkeypatch.setattr(torch_, "_beside", {})

    def new_group(ranks, number, backend):
        asked.append(backend)
        return dist.new_group(ranks, backend="gloo")

    monkeypatch.setattr(torch_, "new_group", new_group)
    world = dist.group.WORLD
    device, host = torch_.carriers(world, nccl)
    assert torch_.carriers(world, nccl) == (device, host)
    assert asked == made
    assert (host is not world) == ("gloo" in made)
    assert (device is not world) == ("nccl" in made if nccl else host is not world)


@pytest.mark.usefixtures("group_of_one")
def test_a_group_beside_an_earlier_world_is_made_anew(tmp_path):
    first = torch_.beside(dist.group.WORLD, "gloo")
    assert torch_.beside(dist.group.WORLD, "gloo") is first
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/again", rank=0, world_size=1)
    assert torch_.beside(dist.group.WORLD, "gloo") is not first


@pytest.mark.usefixtures("group_of_one")
def test_groups_of_a_world_have_its_time_out_and_not_the_ten_or_thirty_minutes_that_torch_gives_them() -> None:
    for group in (torch_.new_group([0], 5), torch_.beside(dist.group.WORLD, "gloo")):
        assert group is not dist.group.WORLD
        assert group._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=77)


def test_each_launch_under_torchrun_has_its_own_time_out_though_the_world_is_that_of_the_first(monkeypatch):
    told = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(join, "_end_with_world", lambda: None)
    monkeypatch.setattr(join, "_made_world", True)
    found = []
    for seconds in (5.0, 500.0):
        join._join(Job(1, seconds, "ring", ("cpu",), "gloo", 1))
        found.append(torch_.timeout_of(dist.group.WORLD).total_seconds())
    dist.destroy_process_group()
    assert found == [5 + SPARE_SECONDS, 500 + SPARE_SECONDS]


def test_of_a_group_whose_backends_differ_or_do_not_say_torch_s_default_is_taken() -> None:
    def group(**seconds: int | None) -> SimpleNamespace:
        options = {
            kind: SimpleNamespace(_timeout=timedelta(seconds=said)) if said else object()
            for kind, said in seconds.items()
        }
        return SimpleNamespace(
            _device_types=[*options], _get_backend=lambda kind: SimpleNamespace(options=options[kind])
        )

    assert torch_.timeout_of(group(cpu=77, cuda=77)) == torch_.timeout_of(group(cpu=77, cuda=None)) == timedelta(0, 77)
    assert torch_.timeout_of(group(cpu=77, cuda=78)) is torch_.timeout_of(group(cuda=None)) is None


def agree_beside_nccl(comm):
    """Rows that all ranks told, what ranks that gathered other units hear, and which groups carried it."""
    carried = []
    host = dist.new_group(backend="gloo")
    isend = dist.isend
    dist.isend = lambda *args, **rest: carried.append(rest["group"] is host) or isend(*args, **rest)

    def refused(*args, **kwargs):
        raise AssertionError("a collective on the device")

    torch_._all_gather_single = refused
    own = build(ProcessTransport(dist.group.WORLD, torch.device("cpu"), nccl=True, host=host), "torch")
    rows = own.transport.all_gather_ints([comm.rank, 10 * comm.rank])
    own.agree()
    own._labels = ["a", "b" if comm.rank else "c"]
    try:
        own.agree()
    except MismatchError as error:
        return rows, str(error), all(carried)


def test_ranks_on_nccl_agree_between_hosts_by_log_n_messages_and_their_gpus_are_not_asked():
    for rows, said, on_host in launch(agree_beside_nccl, ranks=3, collectives="transport", timeout=60):
        assert rows == [[rank, 10 * rank] for rank in range(3)]
        assert "the ranks gathered other units (rank 0 c, rank 1 b, rank 2 b: number 2 since" in said
        assert on_host


def test_what_a_rank_knows_doubles_with_each_message():
    for ranks in (2, 3, 8, 16):
        transports = launch(count_exchanges, ranks=ranks, world="lockstep", collectives="transport", timeout=60)
        assert transports == [(math.ceil(math.log2(ranks)), [[rank] for rank in range(ranks)])] * ranks


def count_exchanges(transport):
    counted = []

    class Counting(WrappedTransport):
        all_gather_ints = Transport.all_gather_ints

        def exchange(self, *args):
            counted.append(args)
            super().exchange(*args)

    rows = Counting(transport).all_gather_ints([transport.rank])
    return len(counted), rows
