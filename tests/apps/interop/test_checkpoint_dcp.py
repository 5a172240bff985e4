"""Runs go from our engine to torch's FSDP2, DDP and one process and back, through folders of torch's distributed
checkpoint (DCP), and end where undisturbed ones do."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_checkpoint
from checkpoint_cases import Net, Way, differing, rows, save_at, values_of
from torch import nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint import state_dict as dsd
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from zerolab.apps.cli import main
from zerolab.apps.interop.dcp import METADATA, from_dcp, read_metadata, to_dcp
from zerolab.checkpoint import CheckpointError, Checkpoints, find_latest, load, read_manifest, save
from zerolab.checkpoint.tensors import FileReader
from zerolab.collectives import Collectives
from zerolab.errors import InputError
from zerolab.memory import Tracker
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.ranks,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]

STEPS, SAVED, LR = 6, 3, 1e-2
ULPS = 4 * torch.finfo(torch.float32).eps
"""Relative; one to two were measured."""
FLAT = dsd.StateDictOptions(flatten_optimizer_state_dict=True)


class Model(nn.Module):
    """Tied weights, a frozen layer and a float buffer; no 0-dim parameter, which FSDP2 refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 10)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(10, 10), nn.Tanh()) for _ in range(2)])
        self.frozen = nn.Linear(10, 10).requires_grad_(False)
        self.norm = nn.LayerNorm(10)
        self.head = nn.Linear(10, 13, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("shift", torch.full((10,), 0.25))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.embed(tokens)
        for layer in self.layers:
            h = h + layer(h)
        return self.head(self.norm(self.frozen(h) + self.shift.to(h.dtype)))


FROZEN = ["frozen.*", "head.weight"]


def built() -> Model:
    torch.manual_seed(0)
    return Model()


def loss_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())


def decay(name: str, parameter: nn.Parameter) -> dict[str, float]:
    return {"weight_decay": 0.1 if parameter.dim() > 1 else 0.0}


class Ours:
    """A run of our engine."""

    def __init__(self, comm: Collectives, stage: int, **options: Any) -> None:
        self.comm = comm
        self.engine = ZeroEngine(built(), comm, stage, lr=LR, groups=decay, clip_norm=1.0, **options)
        self.losses: list[float] = []

    def train(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            loss = loss_of(self.engine, rows(step, self.comm))
            self.engine.backward(loss)
            self.engine.step()
            self.losses.append(self.comm.all_reduce(loss.detach().clone(), average=True).item())

    def end(self) -> tuple[list[float], dict[str, torch.Tensor]]:
        return self.losses, self.engine.consolidate()


class Theirs:
    """The same of torch: of FSDP2, DDP or one process alone. Its groups come in the other order."""

    def __init__(self, comm: Collectives, wrap: Callable[[nn.Module], nn.Module], lr: float = LR) -> None:
        self.comm, self.model = comm, wrap(built())
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [each for each in trained if each.dim() < 2], "weight_decay": 0.0},
                {"params": [each for each in trained if each.dim() > 1], "weight_decay": 0.1},
            ],
            lr=lr,
        )
        self.losses: list[float] = []

    def train(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            loss = loss_of(self.model, rows(step, self.comm))
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(self.comm.all_reduce(loss.detach().clone(), average=True).item())

    def state(self, options: Any = None) -> dict[str, Any]:
        model, optim = dsd.get_state_dict(self.model, self.optimizer, options=options)
        return {"model": model, "optim": optim}

    def save(self, folder: Path, options: Any = None) -> None:
        torch_checkpoint.save(self.state(options), checkpoint_id=folder)

    def load(self, folder: Path, options: Any = None) -> None:
        state = self.state(options)
        torch_checkpoint.load(state, checkpoint_id=folder)
        dsd.set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optim"],
            options=options,
        )

    def end(self) -> tuple[list[float], dict[str, torch.Tensor]]:
        state = {name.removeprefix("module."): tensor for name, tensor in self.model.state_dict().items()}
        return self.losses, {name: whole(tensor) for name, tensor in state.items()}


def whole(tensor: Any) -> torch.Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def shard_fully(model: Any, **options: Any) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


WRAPS: dict[str, Callable[[Any], nn.Module]] = {
    "fsdp2": shard_fully,
    "ddp": nn.parallel.DistributedDataParallel,
    "plain": lambda model: model,
}


def distance(one: Any, other: Any) -> tuple[float, float]:
    """The largest differences of losses and of parameters, relative to the largest of each tensor."""
    losses = max(abs(a - b) / abs(b) for a, b in zip(one[0][-3:], other[0][-3:], strict=True))
    assert one[1].keys() <= other[1].keys() or other[1].keys() <= one[1].keys()
    parameters = max(
        ((one[1][name] - other[1][name]).abs().max() / other[1][name].abs().max()).item()
        for name in one[1].keys() & other[1].keys()
    )
    return losses, parameters


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """A checkpoint of ZeRO-3 on 2 ranks, the DCP folder made of it, and where that run ends."""
    folder = tmp_path_factory.mktemp("ours")

    def train(comm: Collectives) -> Any:
        run = Ours(comm, 3)
        run.train(0, SAVED)
        path = save(folder / "run", run.engine, SAVED)
        run.train(SAVED, STEPS)
        return path, run.end()

    path, end = launch(train, ranks=2, world="lockstep")[0]
    return path, to_dcp(path, folder / "dcp"), end


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """DCP folders of FSDP2 on 2 ranks, one with its optimizer's state flat, and where that run ends."""
    folder = tmp_path_factory.mktemp("theirs")

    def train(comm: Collectives) -> Any:
        run = Theirs(comm, shard_fully)
        run.train(0, SAVED)
        run.save(folder / "nested")
        run.save(folder / "flat", FLAT)
        run.train(SAVED, STEPS)
        return run.end()

    return folder, launch(train, ranks=2, timeout=60)[0]


def test_fsdp2_on_three_ranks_goes_on_from_zero_3_on_two(ours: Any) -> None:
    def go_on(comm: Collectives) -> list[Any]:
        found = []
        for options in (None, FLAT):
            # What is not loaded would show.
            run = Theirs(comm, shard_fully, lr=7.0)
            run.load(ours[1], options)
            assert {group["lr"] for group in run.optimizer.param_groups} == {LR}
            assert [group["weight_decay"] for group in run.optimizer.param_groups] == [0.0, 0.1]
            run.train(SAVED, STEPS)
            found.append(run.end())
        return found

    for of_rank in launch(go_on, ranks=3, timeout=60):
        for end in of_rank:
            losses, parameters = distance(end, ours[2])
            assert losses < ULPS and parameters < ULPS


@pytest.mark.parametrize("form", ["nested", "flat"])
def test_our_engine_on_three_ranks_goes_on_from_fsdp2_on_two(form: str, theirs: Any, tmp_path: Path) -> None:
    path = from_dcp(theirs[0] / form, tmp_path / "run", frozen=FROZEN, buffers=["shift"])
    assert read_manifest(path).step == SAVED and path == find_latest(tmp_path / "run")

    def go_on(comm: Collectives) -> list[Any]:
        found = []
        for stage in (1, 3):
            run = Ours(comm, stage)
            load(tmp_path / "run", run.engine)
            run.train(SAVED, STEPS)
            found.append(run.end())
        return found

    for of_rank in launch(go_on, ranks=3, world="lockstep"):
        assert differing(of_rank[0][1], of_rank[1][1]) == []
        for end in of_rank:
            losses, parameters = distance(end, theirs[1])
            assert losses < ULPS and parameters < ULPS


@pytest.mark.parametrize("name", ["ddp", "plain"])
def test_ddp_and_one_process_go_on_from_ours_and_ours_from_theirs(name: str, ours: Any, tmp_path: Path) -> None:
    ranks = 2 if name == "ddp" else 1

    def both(comm: Collectives) -> Any:
        run = Theirs(comm, WRAPS[name])
        run.load(ours[1])
        # In the names of the module and of the optimizer itself, too, as many save.
        raw = {"model": run.model.state_dict(), "optim": run.optimizer.state_dict()}
        run.save(tmp_path / "dcp")
        torch_checkpoint.save(raw, checkpoint_id=tmp_path / "raw")
        run.train(SAVED, STEPS)
        return run.end()

    for end in launch(both, ranks=ranks, timeout=60):
        losses, parameters = distance(end, ours[2])
        assert losses < ULPS and parameters < ULPS
    with torch.device("meta"):
        model = Model()
    back = from_dcp(tmp_path / "dcp", tmp_path / "run", module=model)
    assert differing(values_of(ours[0]), values_of(back)) == []
    weights = from_dcp(tmp_path / "raw", tmp_path / "weights", module=model, optimizer="")
    assert differing(values_of(weights), {name: own for name, own in values_of(back).items() if "model/" in name}) == []
    with pytest.raises(CheckpointError, match=r"states by number.*get_optimizer_state_dict"):
        from_dcp(tmp_path / "raw", tmp_path / "numbers", module=model)


RECIPES = ("bf16", "pure_bf16", "bf16_fp8_moments", "fsdp2")


def test_fsdp2_with_mixed_precision_takes_the_parameters_with_the_most_bits(tmp_path: Path) -> None:
    def train(comm: Collectives, recipe: str) -> tuple[Path, float]:
        run = Ours(comm, 3, precision=recipe)
        run.train(0, SAVED)
        path = save(tmp_path / recipe, run.engine, SAVED)
        run.train(SAVED, SAVED + 1)
        return path, run.losses[-1]

    ends = {recipe: launch(train, recipe, ranks=2, world="lockstep")[0] for recipe in RECIPES}
    for recipe, (path, _) in ends.items():
        to_dcp(path, tmp_path / f"{recipe}-dcp")

    def go_on(comm: Collectives, recipe: str) -> tuple[dict[str, torch.Tensor], float]:
        from torch.distributed.fsdp import MixedPrecisionPolicy

        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32 if recipe == "fsdp2" else torch.bfloat16)
        run = Theirs(comm, lambda model: shard_fully(model, mp_policy=policy))
        run.load(tmp_path / f"{recipe}-dcp")
        state = run.state()["optim"]["state"]
        moments = {f"{of}/{name}": whole(state[name][of]) for name in state for of in ("exp_avg", "exp_avg_sq")}
        own = {f"model/{name}": whole(parameter) for name, parameter in run.model.named_parameters()}
        run.train(SAVED, SAVED + 1)
        return own | moments, run.losses[-1]

    for of_rank in launch(lambda comm: [go_on(comm, recipe) for recipe in RECIPES], ranks=2, timeout=60):
        for (recipe, (path, expected)), (state, loss) in zip(ends.items(), of_rank, strict=True):
            assert loss == pytest.approx(expected, rel=0.02), recipe
            stored = values_of(path)
            assert ("main/embed.weight" in stored) == (recipe in ("bf16", "bf16_fp8_moments"))
            for key, tensor in state.items():
                kind, _, name = key.partition("/")
                best = stored.get(f"main/{name}", stored.get(key)) if kind == "model" else stored[key]
                assert tensor.dtype == torch.float32
                if f"{kind}.scale/{name}" not in stored:
                    assert torch.equal(tensor.view(-1), best.float()), (recipe, key)


class Shared(nn.Module):
    """A buffer under two names, and a module that is there twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.BatchNorm1d(2), nn.Module()
        self.c = self.a
        self.register_buffer("seen", torch.arange(3.0))
        self.b.register_buffer("too", self.seen)


def test_torch_finds_all_names_of_buffers_that_modules_share(tmp_path: Path) -> None:
    def write(comm: Collectives) -> Path:
        return save(tmp_path / "there", ZeroEngine(Shared(), comm, 2, lr=0.1), 1)

    folder = to_dcp(launch(write, ranks=2, world="lockstep")[0], tmp_path / "dcp")
    model = Shared()
    with torch.no_grad():
        model.seen.zero_()
    state = {"model": model.state_dict()}
    torch_checkpoint.load(state, storage_reader=FileSystemReader(folder))
    assert set(state["model"]) >= {"seen", "b.too", "a.running_mean", "c.running_mean"}
    assert state["model"]["b.too"].tolist() == state["model"]["seen"].tolist() == [0.0, 1.0, 2.0]
    back = from_dcp(folder, tmp_path / "back", module=Shared())
    assert read_manifest(back).tied["b.too"] == "seen"


def test_what_goes_there_and_back_has_the_same_bits(tmp_path: Path) -> None:
    """With 0-dim and empty parameters; and torch's own tools read the folder."""
    path = launch(save_at, Way(3), tmp_path / "there", ranks=3, world="lockstep")[0]
    dcp = to_dcp(path, tmp_path / "dcp")
    with torch.device("meta"):
        model = Net()
    back = from_dcp(dcp, tmp_path / "back", module=model, data={"at": 3})
    assert differing(values_of(path), values_of(back)) == []
    assert read_manifest(back).data == {"at": 3} and read_manifest(back).tied == {"head.weight": "embed.weight"}
    ours, theirs = read_metadata(dcp), FileSystemReader(dcp).read_metadata()
    assert ours.state_dict_metadata.keys() == theirs.state_dict_metadata.keys()
    dcp_to_torch_save(dcp, tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert differing(whole["model"], {name: whole["model"][name] for name in Net().state_dict()}) == []
    assert torch.equal(whole["optim"]["state"]["scale"]["exp_avg"].view(-1), values_of(path)["exp_avg/scale"])
    with Checkpoints(tmp_path / "back") as checkpoints:
        loaded = launch(lambda comm: checkpoints.load(Way(2).build(comm)).step, ranks=2, world="lockstep")
    assert list(loaded) == [3, 3]


def test_a_conversion_holds_one_tensor_and_says_how_far_it_is(ours: Any, tmp_path: Path) -> None:
    said: list[tuple[int, int]] = []
    with Tracker() as tracker:
        folder = to_dcp(ours[0], tmp_path / "dcp", progress=lambda *at: said.append(at))
    entries = read_metadata(folder).state_dict_metadata.values()
    tensors = [entry for entry in entries if hasattr(entry, "size")]
    sizes = [entry.size.numel() * entry.properties.dtype.itemsize for entry in tensors]
    assert said == [(done, len(entries)) for done in range(1, len(entries) + 1)]
    assert sum(tracker.peak.values()) <= 3 * max(sizes) < sum(sizes) / 3
    back = from_dcp(folder, tmp_path / "back", module=built(), progress=lambda *at: said.append(at))
    assert said[-1] == (tensors_in(back),) * 2
    assert differing(values_of(ours[0]), values_of(back)) == []


def tensors_in(path: Path) -> int:
    return sum(len(FileReader(file).entries) - 1 for file in path.glob("*.safetensors"))


class Trap:
    """A pickle that does something when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_nothing_of_a_folder_is_run(theirs: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(theirs[0] / "nested", tmp_path / "dcp"))
    metadata = FileSystemReader(folder).read_metadata()
    metadata.planner_data = Trap(tmp_path / "sprung")
    (folder / METADATA).write_bytes(pickle.dumps(metadata))
    from_dcp(folder, tmp_path / "run", frozen=FROZEN, buffers=["shift"])
    # Of its values, too.
    state = {"model": {"weight": torch.ones(2)}, "optim": {"param_groups": [{"params": Trap(tmp_path / "sprung")}]}}
    torch_checkpoint.save(state, checkpoint_id=tmp_path / "value", no_dist=True)
    with pytest.raises(CheckpointError, match=r"__0_0.distcp, which has optim.param_groups.0.params, cannot be read"):
        from_dcp(tmp_path / "value", tmp_path / "again")
    assert not (tmp_path / "sprung").exists()


def damaged(name: str, folder: Path) -> None:
    shard = sorted(folder.glob("*.distcp"))[0]
    match name:
        case "no metadata":
            (folder / METADATA).unlink()
        case "other metadata":
            (folder / METADATA).write_bytes(pickle.dumps({"state": [1, 2]}))
        case "cut metadata":
            os.truncate(folder / METADATA, 200)
        case "no shard":
            shard.unlink()
        case "cut shard":
            os.truncate(shard, 5000)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no metadata", ["has no .metadata", "name another"]),
        ("other metadata", [".metadata is damaged", "take another checkpoint"]),
        ("cut metadata", [".metadata is damaged", "take another checkpoint"]),
        ("no shard", ["__0_0.distcp", "No such file", "take another checkpoint"]),
        ("cut shard", ["__0_0.distcp", "cannot be read", "take another checkpoint"]),
    ],
)
def test_a_damaged_folder_is_named_and_no_checkpoint_appears(
    name: str, words: list[str], theirs: Any, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(theirs[0] / "nested", tmp_path / "dcp"))
    damaged(name, folder)
    with pytest.raises(CheckpointError) as caught:
        from_dcp(folder, tmp_path / "run", frozen=FROZEN, buffers=["shift"])
    said = str(caught.value)
    assert all(word in said for word in words) and "\n" not in said, said
    assert find_latest(tmp_path / "run") is None
    assert not list(tmp_path.glob("run/.writing*"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["shift has no optimizer states", "frozen=[...]", "buffers=[...]", "module="]),
        ({"model": "net"}, ["no entry that begins with 'net'", "model, optim", 'model="..."']),
    ],
    ids=["undecided", "another name"],
)
def test_what_a_folder_does_not_say_is_asked_for(
    options: dict[str, Any], words: list[str], theirs: Any, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError) as caught:
        from_dcp(theirs[0] / "nested", tmp_path / "run", **options)
    said = str(caught.value)
    assert all(word in said for word in words) and "\n" not in said, said
    assert not (tmp_path / "run").exists()


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    match name:
        case "adafactor":
            return torch.optim.Adafactor(model.parameters())
        case "sgd":
            return torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    return torch.optim.AdamW(model.parameters())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("adafactor", ["is not elementwise", 'optimizer=""']),
        ("steps", ["step is 1 of", "and 5 of", "share a group", 'optimizer=""']),
        ("half", ["has no exp_avg of", "but of other parameters"]),
    ],
)
def test_states_that_no_engine_can_take_are_refused(name: str, words: list[str], tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = optimizer_of(name, model)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optim": copy.deepcopy(dsd.get_optimizer_state_dict(model, optimizer))}
    of = state["optim"]["state"]
    match name:
        case "steps":
            of["1.bias"]["step"] += 4
        case "half":
            del of["1.bias"]["exp_avg"]
    torch_checkpoint.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    with pytest.raises(CheckpointError) as caught:
        from_dcp(tmp_path / "dcp", tmp_path / "run")
    said = str(caught.value)
    assert all(word in said for word in words) and "\n" not in said, said
    weights = from_dcp(tmp_path / "dcp", tmp_path / "weights", optimizer="", step=7)
    assert read_manifest(weights).step == 7 and read_manifest(weights).states == {}


def test_another_optimizer_of_torch_is_taken_with_its_states_and_refused_by_an_engine_with_adamw(
    tmp_path: Path,
) -> None:
    """SGD counts no steps. A layer that was never used has no states in torch, and zeros here."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    model = Part()
    optimizer = optimizer_of("sgd", model)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optim": dsd.get_optimizer_state_dict(model, optimizer)}
    torch_checkpoint.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    path = from_dcp(tmp_path / "dcp", tmp_path / "run", step=1)
    found = values_of(path)
    assert torch.equal(found["momentum_buffer/used.bias"], torch.ones(4))
    assert torch.equal(found["momentum_buffer/unused.bias"], torch.zeros(4))

    def attempt(comm: Collectives) -> str:
        sgd = ZeroEngine(Part(), comm, 2, optimizer=partial(torch.optim.SGD, lr=1.0, momentum=0.5))
        load(path, sgd)
        assert sgd.optimizer.param_groups[0]["momentum"] == 0.9
        try:
            load(path, ZeroEngine(Part(), comm, 2, lr=LR))
        except InputError as error:
            return str(error)
        return ""

    for said in launch(attempt, ranks=2, world="lockstep"):
        assert "has the states of an optimizer of torch's (momentum_buffer)" in said and "AdamW" in said


def test_a_folder_that_is_used_or_cannot_be_written_is_named(ours: Any, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, words in (("used", "is no empty folder; name a new one"), ("file", "is no empty folder")):
        for convert in (
            lambda target: to_dcp(ours[0], target),
            lambda target: from_dcp(ours[1], target, module=built()),
        ):
            with pytest.raises(CheckpointError) as caught:
                convert(tmp_path / name)
            assert words in str(caught.value) and name in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "used"]
    (tmp_path / "new").mkdir()
    assert (to_dcp(ours[0], tmp_path / "new") / METADATA).is_file()


def test_a_damaged_checkpoint_gives_no_folder(ours: Any, tmp_path: Path) -> None:
    path = Path(shutil.copytree(ours[0], tmp_path / ours[0].name))
    shard = path / "optimizer_shard_rank1.safetensors"
    data = bytearray(shard.read_bytes())
    data[-300] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"optimizer_shard_rank1.safetensors is damaged: .*; "):
        to_dcp(path, tmp_path / "dcp")
    assert sorted(each.name for each in tmp_path.iterdir()) == [path.name]


# The command.


def test_the_command_converts_both_ways_and_its_errors_name_its_flags(
    ours: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, back = str(tmp_path / "dcp"), str(tmp_path / "run")
    convert = ["checkpoint", "convert"]
    assert main([*convert, str(ours[0]), there, "--to", "dcp"]) == 0
    assert capsys.readouterr().out == f"{there} is written\n"
    flags = ["--frozen", "frozen.*", "--frozen", "head.weight", "--buffers", "shift"]
    assert main([*convert, there, back, "--to", "zerolab", *flags]) == 0
    assert capsys.readouterr().out == f"{back}/step-00000003 is written\n"
    # Without the model a tied one's other name is a parameter, too.
    assert differing(values_of(Path(back, "step-00000003")), values_of(ours[0])) == ["model/head.weight"]

    def refused(*arguments: str, status: int = 1) -> str:
        assert main([*convert, *arguments]) == status
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1
        return said.err

    new = str(tmp_path / "new")
    assert "is no empty folder" in refused(there, back, "--to", "zerolab")
    assert "; say which: --frozen NAME or --buffers NAME\n" in refused(there, new, "--to", "zerolab")
    assert "what the model is called there: --model NAME" in refused(there, new, "--to", "zerolab", "--model", "net")
    assert "there is no folder" in refused(new, there, "--to", "dcp", status=2)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = optimizer_of("adafactor", model)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    for name, optim in (("raw", optimizer.state_dict()), ("named", dsd.get_optimizer_state_dict(model, optimizer))):
        state = {"app": {"model": model.state_dict(), "optim": optim}}
        torch_checkpoint.save(state, checkpoint_id=tmp_path / name, no_dist=True)
    app = ["--to", "zerolab", "--model", "app.model", "--optimizer", "app.optim"]
    assert "has them; save what get_optimizer_state_dict gives" in refused(str(tmp_path / "raw"), new, *app)
    assert "; convert the weights alone (--weights-only)\n" in refused(str(tmp_path / "named"), new, *app)
    assert not Path(new).exists()
    assert main([*convert, str(tmp_path / "named"), new, *app, "--weights-only"]) == 0
    assert set(values_of(Path(new, "step-00000000"))) == {f"model/{name}" for name, _ in model.named_parameters()}
