"""`zerolab sample`: what was trained goes on with a text, from whatever it was saved by."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from zerolab.apps.cli import main
from zerolab.apps.interop.huggingface.whole import load_learned
from zerolab.data import Batches, load_dataset, prepare
from zerolab.errors import InputError
from zerolab.models import GPT2, GPT2Config
from zerolab.models.generate import generate
from zerolab.run import RunSpec
from zerolab.train import Report, train

TEXT = "the quick brown fox jumps over the lazy dog; " * 60
RUN = {
    "model": "gpt2", "model_size": "nano", "seq_len": 32, "ranks": 2, "lr": 1e-2, "max_steps": 60,
    "lr_schedule": "cosine", "eval_every": 60, "world": "lockstep",
}  # fmt: skip


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("room")
    (folder / "fox.txt").write_text(TEXT)
    prepare(str(folder / "fox.txt"), folder / "fox", "characters")
    return folder


@pytest.fixture(scope="module")
def learned(room: Path) -> Report:
    """A run of two ranks at stage 3 with 16-bit parameters, saved in shards."""
    return train(RunSpec(**RUN, dataset=str(room / "fox"), zero_stage=3, bf16=True, save_folder=room / "run"))


def sampled(capsys: pytest.CaptureFixture[str], *flags: object) -> str:
    assert main(["sample", *map(str, flags)]) == 0
    return capsys.readouterr().out


@pytest.mark.ranks
@pytest.mark.timeout(100)
def test_a_run_of_any_stage_and_ranks_goes_on_with_what_it_learned(
    learned: Report, room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = (room / "run", "--prompt", "the quick", "--tokens", 36, "--temperature", 0)
    assert sampled(capsys, *flags) == TEXT[:45] + "\n"
    assert sampled(capsys, *flags[:-1], 2.5, "--seed", 3) not in TEXT
    # Without a prompt it begins with what the text has.
    assert len(sampled(capsys, room / "run", "--tokens", 50)) == 52


@pytest.mark.ranks
def test_the_plain_model_has_the_main_parameters_of_the_run(learned: Report, room: Path) -> None:
    corpus = load_dataset(str(room / "fox"), seq_len=32)
    model = load_learned(room / "run")[0]
    with torch.no_grad():
        loss = sum(model(*Batches(corpus.valid, 32, 12).micro_batch(step)).item() for step in range(10)) / 10
    # The run evaluates with bf16 parameters.
    assert loss == pytest.approx(learned.validation_loss[60], rel=2e-2)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not torch.equal(model.blocks[0].ffn.up_proj.weight, model.blocks[0].ffn.up_proj.weight.bfloat16().float())


@pytest.mark.ranks
def test_a_hugging_face_folder_and_tokens_without_a_text_are_sampled_too(
    learned: Report, room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["checkpoint", "consolidate", str(room / "run"), str(room / "hf"), "--huggingface", "--dtype=fp32"]) == 0
    )
    capsys.readouterr()
    flags = ("--tokens", 5, "--temperature", 0)
    # It does not say what text its tokens are: their numbers, or the data's tokenizer.
    characters = sorted(set(TEXT))
    numbers = sampled(capsys, room / "hf", *flags, "--prompt", " ".join(str(characters.index(c)) for c in TEXT[:20]))
    assert "".join(characters[int(word)] for word in numbers.split()) == TEXT[:25]
    assert sampled(capsys, room / "hf", *flags, "--prompt", TEXT[:20], "--dataset", room / "fox") == TEXT[:25] + "\n"
    # Bytes are known by their number.
    torch.manual_seed(0)
    from zerolab.apps.interop.huggingface import export, save_folder

    model = GPT2(GPT2Config(256, 16, 1, 2, max_seq_len=8))
    save_folder(room / "bytes", model.config, export(model.config, model.state_dict().__getitem__))
    assert sampled(capsys, room / "bytes", *flags, "--prompt", "longer than the context").startswith("longer than")
    assert main(["checkpoint", "show", str(room / "run")]) == 0
    assert "tokenizer (kind characters" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_draws_are_the_seeds_within_top_k_and_among_known_tokens() -> None:
    torch.manual_seed(0)
    model = GPT2(GPT2Config(64, 16, 1, 2, max_seq_len=8)).eval()
    with torch.no_grad():
        likely = model(torch.tensor([[1, 2, 3]]))[0, -1].topk(3).indices.tolist()

    def first(seed: int, **options: object) -> int:
        return next(generate(model, [1, 2, 3], 1, context=8, seed=seed, **options))  # type: ignore[arg-type]

    assert {first(seed, top_k=3) for seed in range(60)} == set(likely)
    assert {first(seed, temperature=0.0) for seed in range(3)} == {likely[0]} == {first(9, top_k=1)}
    # As cold as fp32 can say, and colder.
    assert {first(seed, temperature=cold) for cold in (1e-30, 1e-40, 1e-320) for seed in range(3)} == {likely[0]}
    assert max(first(seed, known=5) for seed in range(60)) == 4
    runs = [list(generate(model, [1], 20, context=8, seed=seed)) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    with pytest.raises(InputError, match="temperature"):
        next(generate(model, [1], 1, context=8, temperature=-1.0))
    with pytest.raises(IndexError):
        next(generate(model, [1], 1, context=8, top_k=0))


@pytest.mark.ranks
def test_what_cannot_be_sampled_is_a_sentence(learned: Report, room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (room / "numbers").mkdir()
    for name in ("train.bin", "val.bin"):
        (room / "numbers" / name).write_bytes(b"\0" * 90)
    for flags, named in {
        "no/such": ["there is no folder 'no/such'"],
        "{0}": ["there is no checkpoint in"],
        "{0}/run --tokens 0": ["--tokens is '0'"],
        "{0}/run --tokens many": ["--tokens is 'many'"],
        "{0}/run --temperature -1": ["--temperature is '-1'"],
        "{0}/run --top-k 0": ["--top-k is '0'"],
        "{0}/run --seed x": ["--seed is 'x'"],
        "{0}/run --prompt THE": ["'T' is none of the 28 characters"],
        "{0}/run --dataset none": ["dataset is 'none'"],
        "{0}/run --prompt seven --dataset {0}/numbers": ["--prompt", "numbers, below 28"],
    }.items():
        assert main(["sample", *flags.format(room).split()]) == 2, flags
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and all(word in said for word in named), said
