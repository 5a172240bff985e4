"""Ranks that somebody else has started and joined: `from_process_group`."""

import json
import sys
from types import SimpleNamespace

import born
import group_ranks
import pytest
import torch
import torch.distributed as dist

from zerolab.collectives import Link
from zerolab.errors import InputError
from zerolab.ranks import from_process_group, launch, process_group

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
    assert all("rank 0 is no member" in refusal for refusal in outsider.values())
    for at, member in enumerate(members):
        assert list(member.values()) == [[at, 2, [0, 1, 1, 2], 3.0, 2]] * 3


def test_under_torchrun_a_script_may_make_the_group_itself(tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = born.ran(*torchrun, group_ranks.__file__, tmp_path, capture_output=True, text=True, timeout=80)
    assert done.returncode == 0, done.stderr
    assert all(json.loads((tmp_path / f"{rank}.json").read_text()) < 1e-6 for rank in range(2))


@pytest.fixture
def group_of_one(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_without_a_group_the_way_to_one_is_named():
    with pytest.raises(InputError, match=r"init_process_group first, or let zerolab\.ranks\.launch"):
        from_process_group()


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"collectives": "rings"}, "no collectives 'rings'; choose auto, shared, ring"),
        ({"group": 3}, "group is of type int"),
        ({"device": "meta"}, "need gloo, or NCCL"),
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
        ({"device": "cuda:0", "link": Link(gbit_per_s=1.0)}, False, "ring"),
        ({"device": "cuda:0", "collectives": "ring"}, False, "ring"),
    ],
)
def test_auto_is_shared_memory_on_one_machine_nccl_on_gpus_and_the_ring_on_a_link(given, together, chosen, monkeypatch):
    monkeypatch.setattr(process_group, "ProcessTransport", lambda *args: SimpleNamespace(size=2))
    monkeypatch.setattr(process_group, "_share_a_machine", lambda transport: together)
    monkeypatch.setattr(process_group, "build", lambda transport, impl, **rest: impl)
    monkeypatch.setattr(process_group, "_backends", lambda group: {"cpu": "gloo", "cuda": "nccl"})
    assert from_process_group(**given) == chosen


@pytest.mark.parametrize("possible", [True, False])
def test_ranks_share_a_machine_only_where_they_can_open_each_other_s_memory(possible, monkeypatch):
    monkeypatch.setattr(process_group, "is_possible", lambda: possible)
    monkeypatch.setattr(process_group, "host_number", lambda: 7)
    shared = launch(process_group._share_a_machine, ranks=2, world="lockstep", collectives="transport", timeout=60)
    assert shared == [possible] * 2


@pytest.mark.parametrize(
    ("config", "device", "words"),
    [
        ("cuda:nccl", "cpu", "joins cuda by nccl, and ranks on cpu need gloo"),
        ("cuda:nccl", None, "joins cuda by nccl, and ranks on cpu need gloo"),
        ("cpu:mpi", None, "joins cpu by mpi"),
    ],
)
def test_a_backend_that_cannot_serve_the_device_is_named(config, device, words, monkeypatch):
    monkeypatch.setattr(dist, "get_backend_config", lambda group: config)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=words):
        process_group._choose_device(device, process_group._backends(None))
