"""What was sharded comes out whole: safetensors, Hugging Face's folders, a state_dict; and goes in again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import Net, Run, Way, differing, save_at, values_of
from safetensors.torch import load_file
from torch import nn

from zerolab.apps.cli import main
from zerolab.apps.interop.huggingface import from_pretrained, load_folder
from zerolab.apps.interop.huggingface.whole import consolidate, export
from zerolab.checkpoint import load, save
from zerolab.checkpoint.tensors import FileReader
from zerolab.collectives import Collectives, LocalCollectives
from zerolab.errors import CheckpointError, InputError
from zerolab.models import build, config_of
from zerolab.offload import Offload
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

pytestmark = [pytest.mark.timeout(120), pytest.mark.ranks]


def lockstep(fn: Any, *arguments: Any, ranks: int = 3) -> list[Any]:
    return launch(fn, *arguments, ranks=ranks, world="lockstep", timeout=60)


def test_a_consolidated_checkpoint_is_the_state_dict_that_the_run_had(tmp_path: Path) -> None:
    def train(comm: Collectives) -> dict[str, torch.Tensor]:
        run = Run(comm, Way(3))
        run.train(0, 2)
        save(tmp_path / "run", run.engine, 2)
        export(run.engine, tmp_path / "exported")
        return run.engine.state_dict()

    state = lockstep(train)[0]
    consolidate(tmp_path / "run", tmp_path / "out", max_shard_bytes=400)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    out = {name: load_file(tmp_path / "out" / file)[name] for name, file in index["weight_map"].items()}
    assert len(set(index["weight_map"].values())) > 3
    # The tied head stands once, as safetensors has it.
    assert sorted(state.keys() - out.keys()) == ["head.weight"]
    assert differing({name: state[name] for name in out}, out) == []
    assert differing(out, load_file(tmp_path / "exported" / "model.safetensors")) == []
    model = Net()
    assert model.load_state_dict(out, strict=False).unexpected_keys == []


def test_fp32_comes_from_main_parameters_and_16_bit_from_those_that_forward_uses(tmp_path: Path) -> None:
    path = lockstep(save_at, Way(2, {"precision": "bf16"}), tmp_path / "run")[0]
    stored = values_of(path)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, None):
        consolidate(tmp_path / "run", tmp_path / f"{dtype}", dtype=dtype)
        out = load_file(tmp_path / f"{dtype}" / "model.safetensors")
        for name in (name.removeprefix("main/") for name in stored if name.startswith("main/")):
            best = stored[f"model/{name}"] if dtype in (None, torch.bfloat16) else stored[f"main/{name}"].to(dtype)
            assert torch.equal(out[name].view(-1), best) and out[name].dtype == best.dtype, name
    assert any(not torch.equal(stored[f"main/{name}"], stored[f"model/{name}"].float()) for name in ["norm.weight"])


def train_language_model(comm: Collectives, name: str, folder: Path) -> torch.Tensor:
    """A step of a small model; a checkpoint; the logits of its 16-bit parameters, computed in fp32."""
    torch.manual_seed(0)
    config = config_of(name, "nano", max_seq_len=16)
    model = build(name, "nano", max_seq_len=16)
    engine = ZeroEngine(model, comm, 3, 1e-2, precision="bf16")
    tokens = torch.arange(32).view(2, 16) * 7 % 256
    engine.backward(engine(tokens, tokens.roll(-1, 1)))
    engine.step()
    save(folder / "run", engine, 1)
    export(engine, folder / "exported", dtype=torch.bfloat16, config=config)
    whole = build(name, "nano", max_seq_len=16)
    whole.load_state_dict(engine.state_dict())
    return whole(tokens).detach()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_checkpoint_of_a_16_bit_stage_3_run_opens_as_a_folder_of_hugging_face_s(name: str, tmp_path: Path) -> None:
    logits = lockstep(train_language_model, name, tmp_path, ranks=2)[0]
    config = config_of(name, "nano", max_seq_len=16)
    consolidate(tmp_path / "run", tmp_path / "out", dtype=torch.bfloat16, config=config)
    tokens = torch.arange(32).view(2, 16) * 7 % 256
    for folder in (tmp_path / "out", tmp_path / "exported"):
        model = from_pretrained(folder, dtype=torch.float32)
        assert torch.equal(model(tokens), logits)
        assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_transformers_opens_a_consolidated_checkpoint_with_the_same_logits(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[bench]'")
    logits = lockstep(train_language_model, name, tmp_path, ranks=2)[0]
    consolidate(
        tmp_path / "run", tmp_path / "out", dtype=torch.bfloat16, config=config_of(name, "nano", max_seq_len=16)
    )
    kind = transformers.LlamaForCausalLM if name == "llama" else transformers.GPT2LMHeadModel
    theirs = kind.from_pretrained(tmp_path / "out", dtype=torch.float32)
    with torch.no_grad():
        found = theirs(torch.arange(32).view(2, 16) * 7 % 256).logits
    assert (found - logits).abs().max() < 1e-5 * logits.abs().max()


@pytest.mark.parametrize(("stage", "precision"), [(0, None), (2, "bf16"), (3, None), (3, "bf16")])
def test_a_folder_of_hugging_face_s_goes_into_a_model_that_has_no_memory_of_its_own(
    stage: int, precision: str | None, tmp_path: Path
) -> None:
    """From the meta device, tensor by tensor, into main parameters too."""
    source = build("llama", "nano", max_seq_len=16)
    consolidated = dict(source.state_dict())

    def read(comm: Collectives) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
        with torch.device("meta"):
            model = build("llama", "nano", max_seq_len=16)
        engine = ZeroEngine(model, comm, stage, 1e-2, precision=precision)
        _, tensors = load_folder(tmp_path / "hf")
        engine.load_state_dict(tensors, strict=False)
        main = [
            state.segment.bucket.layout.slots
            for states in engine.optimizer_step.stored()
            for state in states
            if state.name == "main"
        ]
        save(tmp_path / "run", engine, 0)
        return engine.state_dict(), main

    from zerolab.apps.interop.huggingface import export as to_theirs
    from zerolab.apps.interop.huggingface import save_folder

    config = config_of("llama", "nano", max_seq_len=16)
    save_folder(tmp_path / "hf", config, to_theirs(config, consolidated.__getitem__))
    for state, kept in lockstep(read, ranks=2):
        wanted = {name: value.to(state[name].dtype) for name, value in consolidated.items()}
        assert differing(wanted, state) == [] and bool(kept) == (precision is not None)
    if precision is not None:
        stored = values_of(tmp_path / "run" / "step-00000000")
        named = {name: value.view(-1) for name, value in consolidated.items() if f"main/{name}" in stored}
        assert differing(named, {name: stored[f"main/{name}"] for name in named}) == []


OTHER_SHAPES = {"norm.bias": (4,), "seen": (5,)}


def test_a_state_dict_of_another_shape_is_refused_while_the_model_is_as_it_was() -> None:
    """Of one element, too, which torch would repeat."""
    cases = [(name, shape) for name, other in OTHER_SHAPES.items() for shape in (other, (1,))]

    def attempt(comm: Collectives) -> tuple[list[str], list[str]]:
        run, said = Run(comm, Way(3)), []
        before = run.engine.consolidate()
        for name, shape in cases:
            state = {key: value + 1 for key, value in run.engine.state_dict().items()} | {name: torch.zeros(shape)}
            with pytest.raises(InputError) as error:
                run.engine.load_state_dict(state)
            said.append(str(error.value))
        return said, differing(before, run.engine.consolidate())

    for of_rank, changed in lockstep(attempt):
        assert changed == []
        for (name, shape), said in zip(cases, of_rank, strict=True):
            own = (10,) if name == "norm.bias" else (3,)
            assert f"{name} has shape {shape} in the state_dict and {own} in the model" in said


class Seeing(nn.Module):
    """Keeps a buffer under two names."""

    def __init__(self, buffer: torch.Tensor | None) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.again = nn.Module()
        if buffer is not None:
            self.register_buffer("seen", buffer)
            self.again.register_buffer("too", buffer)


BUFFERS = [
    (torch.zeros(5), "the buffer seen has shape (5,) in this model and (6,) in"),
    (torch.zeros(2, 3), "the buffer seen has shape (2, 3) in this model and (6,) in"),
    (None, "the buffer seen has shape none in this model and (6,) in"),
]


def test_a_checkpoint_whose_buffer_is_another_is_refused_while_the_model_is_as_it_was(tmp_path: Path) -> None:
    def attempt(comm: Collectives) -> list[tuple[str, list[str], str | None]]:
        save(tmp_path, ZeroEngine(Seeing(torch.arange(6.0)), comm, 2, lr=0.1), 1)
        found = []
        for buffer, _ in BUFFERS:
            model = Seeing(buffer)
            with torch.no_grad():
                model.layer.weight.fill_(0.5)
            engine = ZeroEngine(model, comm, 2, lr=0.1)
            before = engine.consolidate()
            with pytest.raises(InputError) as error:
                load(tmp_path, engine)
            found.append((str(error.value), differing(before, engine.consolidate()), engine.broken))
        return found

    for of_rank in lockstep(attempt):
        for (_, words), (said, changed, broken) in zip(BUFFERS, of_rank, strict=True):
            assert words in said and "build the model that was saved" in said and changed == [] and broken is None


def test_a_part_of_a_state_dict_may_give_a_shared_buffer_by_any_of_its_names() -> None:
    engine = ZeroEngine(Seeing(torch.arange(6.0)), LocalCollectives(), 1, lr=0.1)
    engine.load_state_dict({"again.too": torch.full((6,), 7.0)}, strict=False)
    assert engine.consolidate()["seen"].tolist() == [7.0] * 6


def test_what_cannot_be_written_whole_is_said_on_every_rank(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")

    def attempt(comm: Collectives) -> list[str]:
        run, said = Run(comm, Way(3)), []
        save(tmp_path / "run", run.engine, 1)
        other = config_of("llama", "nano")
        for options in ({"folder": tmp_path / "full"}, {"folder": tmp_path / "x", "config": other}):
            try:
                export(run.engine, **options)
            except (InputError, CheckpointError) as error:
                said.append(str(error))
        run.train(0, 1)
        return said

    for said in lockstep(attempt):
        assert "is no empty folder" in said[0] and "which was not trained" in said[1]
    assert os.listdir(tmp_path / "full") == ["mine"] and not (tmp_path / "x").exists()
    with pytest.raises(InputError, match="GPT2Config"):
        consolidate(tmp_path / "run", tmp_path / "y", config=config_of("gpt2", "nano"))
    shard = tmp_path / "run" / "step-00000001" / "model_shard_rank1.safetensors"
    at = next(entry.start for name, entry in FileReader(shard).entries.items() if name.startswith("model/"))
    data = bytearray(shard.read_bytes())
    data[at] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model_shard_rank1\.safetensors is damaged"):
        consolidate(tmp_path / "run", tmp_path / "z")
    assert not (tmp_path / "z").exists()


def test_a_load_into_the_state_that_was_loaded_changes_nothing(tmp_path: Path) -> None:
    lockstep(save_at, Way(1), tmp_path)

    def twice(comm: Collectives) -> bool:
        run = Run(comm, Way(1))
        load(tmp_path, run.engine)
        first = run.engine.consolidate()
        load(tmp_path, run.engine)
        return differing(first, run.engine.consolidate()) == []

    assert lockstep(twice) == [True] * 3


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "checkpoints.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(code, {"__name__": "example"})
    said = capsys.readouterr().out.strip()
    assert said == code.rpartition("# ")[2].strip() == "[0, 0, 0, 0] [3, 3]"
    assert sorted(path.name for path in (tmp_path / "runs" / "linear").glob("step-*")) == [
        "step-00000004",
        "step-00000005",
    ]


def test_the_command_writes_a_run_of_zerolab_train_as_a_folder_of_hugging_face_s(tmp_path: Path, capsys: Any) -> None:
    def train(comm: Collectives) -> None:
        engine = ZeroEngine(build("gpt2", "nano", max_seq_len=16), comm, 2, 1e-2, precision="bf16")
        save(tmp_path / "run", engine, 7, data={"model": "gpt2", "model_size": "nano", "seq_len": 16})
        save(tmp_path / "other", engine, 7)

    lockstep(train, ranks=2)
    out = tmp_path / "out"
    assert main(["checkpoint", "consolidate", str(tmp_path / "run"), str(out), "--huggingface", "--dtype", "fp16"]) == 0
    assert "of step 7 written to" in capsys.readouterr().out
    assert {tensor.dtype for tensor in load_file(out / "model.safetensors").values()} == {torch.float16}
    assert from_pretrained(out).config == config_of("gpt2", "nano", max_seq_len=16)
    assert main(["checkpoint", "consolidate", str(tmp_path / "other"), str(tmp_path / "new"), "--huggingface"]) == 2
    assert "was not saved by zerolab train" in capsys.readouterr().err
    assert main(["checkpoint", "consolidate", str(tmp_path / "other"), str(tmp_path / "new")]) == 0
    assert main(["checkpoint", "consolidate", str(tmp_path / "other"), str(tmp_path / "new")]) == 2
    assert "is no empty folder" in capsys.readouterr().err


def test_what_a_part_of_a_state_dict_does_not_name_stays_on_every_tier(tmp_path: Path) -> None:
    def attempt(comm: Collectives, tier: str) -> list[str]:
        offload = Offload("device", tier, path=tmp_path if tier == "disk" else None)
        run = Run(comm, Way(3, {"offload": offload}))
        wanted = run.engine.consolidate() | {"norm.bias": torch.full((10,), 0.5), "embed.weight": torch.ones(13, 10)}
        part = {name: wanted[name] for name in ("norm.bias", "embed.weight")}
        run.engine.load_state_dict(part, strict=False)
        return differing(wanted, run.engine.consolidate())

    tiers = ("device", "host", "disk")
    assert lockstep(lambda comm: [attempt(comm, tier) for tier in tiers]) == [[[], [], []]] * 3


def adagrad(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(groups, lr=0.1, initial_accumulator_value=0.5)


@pytest.mark.parametrize(("steps", "tier", "precision"), [(0, "host", "bf16"), (2, "device", "pure_bf16")])
def test_an_optimizer_that_makes_its_states_at_once_goes_on_from_any_step(
    steps: int, tier: str, precision: str, tmp_path: Path
) -> None:
    def attempt(comm: Collectives) -> list[str]:
        offload = Offload(tier, "device")
        way = Way(2, {"optimizer": adagrad, "lr": None, "precision": precision, "offload": offload}, dropout=0.0)
        run = Run(comm, way)
        run.train(0, steps)
        save(tmp_path, run.engine, steps, scheduler=run.scheduler)
        again = Run(comm, way)
        load(tmp_path, again.engine, scheduler=again.scheduler)
        run.train(steps, 4)
        again.train(steps, 4)
        return differing(run.engine.consolidate(), again.engine.consolidate())

    assert lockstep(attempt) == [[]] * 3
