"""What a run trains on, and what it trains: prepared tokens and their vocabulary, sizes of models, dropout, compile."""

from __future__ import annotations

import errno
import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from zerolab.apps.cli import main
from zerolab.apps.interop.huggingface import export, save_folder
from zerolab.apps.interop.huggingface.whole import load_learned
from zerolab.data import Batches, ByteTokenizer, CharacterTokenizer, load_corpus, load_dataset, prepare
from zerolab.data.bins import write_together
from zerolab.errors import InputError
from zerolab.files import write_whole
from zerolab.models import GPT2, GPT2Config
from zerolab.run import RunSpec
from zerolab.train import Report, train
from zerolab.train.here import check_here
from zerolab.train.loop import seed_of

TEXT = "the quick brown fox jumps over the lazy dog; " * 40
RUN = {"model": "gpt2", "model_size": "nano", "seq_len": 16, "max_steps": 3, "ranks": 2, "timeout": 60.0}


def run(**settings: object) -> Report:
    return train(RunSpec(**{**RUN, **settings}))


def tokens_in(path: Path) -> list[int]:
    return numpy.fromfile(path, dtype="<u2").tolist()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "fox.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def folder(file: Path) -> Path:
    prepare(str(file), file.parent / "fox", "characters")
    return file.parent / "fox"


def bins(folder: Path, *parts: list[int]) -> Path:
    """A data set as nanoGPT's own scripts write it."""
    folder.mkdir()
    for name, tokens in zip(("train.bin", "val.bin"), parts, strict=True):
        numpy.array(tokens, dtype="<u2").tofile(folder / name)
    return folder


# Preparing


def test_prepare_writes_bytes_or_characters_that_come_back_as_the_text(
    file: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", str(file), "--out", str(tmp_path / "b")]) == 0
    assert "1,620 tokens to train on and 180 to validate, of a vocabulary of 256" in capsys.readouterr().out
    for where, tokenizer in ((tmp_path / "b", ByteTokenizer()), (folder, CharacterTokenizer.of(TEXT))):
        train, valid = tokens_in(where / "train.bin"), tokens_in(where / "val.bin")
        assert (len(train), len(valid)) == (1620, 180)
        assert tokenizer.decode(train) + tokenizer.decode(valid) == TEXT
        meta = json.loads((where / "meta.json").read_text())
        assert meta == {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.said()}
    assert sorted(path.name for path in folder.iterdir()) == ["meta.json", "train.bin", "val.bin"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("no.txt --out {0}/x", ["no.txt", "give the path"]),
        ("{1} --out {1}.d --valid-fraction 1", ["--valid-fraction is '1';", "less than 1"]),
        ("{1} --out {1}.d --valid-fraction some", ["--valid-fraction is 'some'"]),
        ("{1} --out {2}", ["has a data set already"]),
        ("{1} --out {1}", ["cannot be written to"]),
    ],
)
def test_what_cannot_be_prepared_is_a_sentence(
    flags: str, named: list[str], file: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", *flags.format(tmp_path, file, folder).split()]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(word in said for word in named), said


def test_a_disk_that_becomes_full_is_left_without_half_a_data_set(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = write_whole

    def full(path: Path, data: bytes) -> None:
        if "val" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data)

    out = tmp_path / "out"
    with monkeypatch.context() as on_full_disk:
        on_full_disk.setattr("zerolab.data.bins.write_whole", full)
        assert main(["prepare", str(file), "--out", str(out)]) == 2
    assert "No space left on device" in capsys.readouterr().err and [*out.iterdir()] == []
    assert main(["prepare", str(file), "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["meta.json", "train.bin", "val.bin"]


# Reading


def test_a_data_set_is_mapped_and_travels_to_ranks_as_a_name(folder: Path) -> None:
    corpus = load_dataset(str(folder), seq_len=16)
    packed = pickle.dumps(corpus)
    assert len(packed) < 1000
    again = pickle.loads(packed)
    assert torch.equal(again.train.int(), corpus.train.int()) and again.vocab_size == len(set(TEXT))
    inputs, targets = Batches(again.train, 16, 2).micro_batch(0)
    assert again.tokenizer is not None and again.tokenizer.decode(inputs[0]) in TEXT and inputs.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_a_vocabulary_is_that_of_meta_json_or_what_the_tokens_need(tmp_path: Path) -> None:
    folder = bins(tmp_path / "gpt2", [0, 50256] * 20, [7] * 20)
    corpus = load_dataset(str(folder), seq_len=16)
    assert (corpus.vocab_size, corpus.tokenizer, corpus.text.note) == (50257, None, None)
    (folder / "meta.json").write_text('{"vocab_size": 50304}')
    other = load_dataset(str(folder), seq_len=16)
    assert (other.vocab_size, other.text.sha256) == (50304, corpus.text.sha256)
    bins(tmp_path / "b", [0, 50255] * 20, [7] * 20)
    assert load_dataset(str(tmp_path / "b"), seq_len=16).text.sha256 != corpus.text.sha256


class Trap:
    def __reduce__(self) -> Any:
        return exec, ("raise AssertionError('the pickle was opened')",)


def test_nanogpts_pickle_is_named_and_never_opened(tmp_path: Path) -> None:
    folder = bins(tmp_path / "chars", [*range(65)] * 2, [*range(65)])
    (folder / "meta.pkl").write_bytes(pickle.dumps(Trap()))
    corpus = load_dataset(str(folder), seq_len=16)
    assert corpus.vocab_size == 65
    assert "meta.pkl is not opened" in str(corpus.text.note) and "the vocabulary is 65" in str(corpus.text.note)


BROKEN: dict[str, tuple[dict[str, bytes], str]] = {
    "no file": ({"val.bin": b"\0\0"}, "prepare FILE --out"),
    "half a token": ({"train.bin": b"\0" * 41}, "has 41 bytes"),
    "too short": ({"val.bin": b"\0" * 32}, "val.bin has 16 tokens"),
    "no JSON": ({"meta.json": b"{"}, "meta.json cannot be read"),
    "no size": ({"meta.json": b"[]"}, "gives None as vocab_size"),
    "a small size": ({"meta.json": b'{"vocab_size": 5}'}, "has a token 9; give 10"),
    "no tokenizer": ({"meta.json": b'{"vocab_size": 10, "tokenizer": "gpt2"}'}, "names the tokenizer 'gpt2'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_data_set_that_cannot_be_is_a_sentence(name: str, tmp_path: Path) -> None:
    files, said = BROKEN[name]
    folder = bins(tmp_path / "d", [*range(10)] * 4, [3] * 20)
    for path, data in files.items():
        (folder / path).write_bytes(data)
    if name == "no file":
        (folder / "train.bin").unlink()
    with pytest.raises(InputError, match=said):
        load_dataset(str(folder), seq_len=16)


# Training


@pytest.mark.ranks
def test_row_13_a_model_takes_the_vocabulary_of_its_data_set(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "fox").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    flags = "--dataset fox --model gpt2 --model-size nano --seq-len 16 --ranks 2 --zero-stage 1 --max-steps 2"
    assert main(["train", *flags.split(), "--profile-json", "run.json"]) == 0
    profile = json.loads(Path("run.json").read_text())
    assert profile["config"]["vocab_size"] == len(set(TEXT)) and profile["text"] == "fox"
    # Before it knows anything.
    assert profile["loss"][0] == pytest.approx(math.log(len(set(TEXT))), rel=0.05)
    assert "NO" not in capsys.readouterr().out


def test_a_model_has_the_sizes_that_are_given() -> None:
    assert RunSpec(model="gpt2", layers=3, heads=6, dim=96, bias=True, vocab_size=50304).architecture == GPT2Config(
        50304, 96, 3, 6, max_seq_len=64, bias=True
    )
    llama = RunSpec(dim=96, heads=3, context=128)
    assert (llama.architecture.max_seq_len, llama.architecture.kv_heads, llama.architecture.ffn_dim) == (128, 3, 256)  # type: ignore[union-attr]
    assert llama.model_name == "llama heads 3, dim 96"
    assert RunSpec().model_name == "llama tiny"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--model gpt2 --kv-heads 2", ["--kv-heads is 2, which gpt2 does not have"]),
        ("--bias", ["bias is True, which llama does not have"]),
        ("--dim 100 --heads 3", ["dim 100", "heads 3"]),
        ("--context 8", ["64 tokens", "context of llama tiny, 8"]),
        ("--vocab-size 100", ["--vocab-size is 100", "embedded has 256 tokens"]),
        ("--dropout 0.1", ["dropout is 0.1", "--model gpt2"]),
        ("--dataset x --data-mode synthetic", ["--data-mode is 'synthetic'", "'x'", "choose one"]),
        ("--compile-backend tvm", ["--compile-backend is 'tvm'", "'inductor'"]),
        ("--compile-backend eager", ["--compile-backend is eager", "nothing is compiled"]),
        ("--dataset no/such", ["dataset is 'no/such'", "zerolab prepare"]),
    ],
)
def test_a_model_or_data_that_cannot_be_is_a_sentence(
    flags: str, named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *flags.split()]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(word in said for word in named), said


def test_dropout_is_there_in_training_alone_and_recomputed_alike() -> None:
    config, tokens = GPT2Config(32, 16, 2, 2, max_seq_len=8), torch.randint(0, 32, (4, 8))
    torch.manual_seed(0)
    plain = GPT2(config)
    torch.manual_seed(0)
    model = GPT2(config, dropout=0.3)
    assert not torch.equal(model(tokens), model(tokens))
    assert torch.equal(model.eval()(tokens), plain(tokens))
    gradients = []
    for checkpoint in (False, True):
        torch.manual_seed(1)
        model.train().checkpoint = checkpoint
        model.zero_grad()
        model(tokens, tokens).backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(map(torch.equal, *gradients))
    # Half of what is left out comes back as twice the rest.
    torch.manual_seed(2)
    kept = GPT2(config, dropout=0.5).embedding
    ratio = kept(tokens) / kept.eval()(tokens)
    assert set(ratio.round(decimals=3).unique().tolist()) == {0.0, 2.0}


@pytest.mark.ranks
def test_what_dropout_leaves_out_depends_on_seed_step_and_rank_alone(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"dropout": 0.2, "grad_accum_steps": 2, "world": "lockstep"}
    whole = run(**settings, zero_stage=0)
    part = run(**settings, zero_stage=3, checkpoint_activations=True, max_steps=2, save_folder=tmp_path)
    rest = run(grad_accum_steps=2, zero_stage=2, resume=tmp_path, world="lockstep")
    assert part.loss + rest.loss == whole.loss and rest.parameters_sha256 == whole.parameters_sha256
    # Two ranks leave out two things: here is what, in plain torch.
    corpus, losses = load_corpus(seq_len=16), []
    torch.manual_seed(0)
    model = GPT2(whole.config.architecture, dropout=0.2)  # type: ignore[arg-type]
    for rank in range(2):
        torch.manual_seed(seed_of(0, 0, rank))
        losses += [model(*batch).item() for batch in Batches(corpus.train, 16, 12, 2, rank, 2).step(0)]
    assert whole.loss[0] == pytest.approx(sum(losses) / 4, rel=1e-5)


@pytest.mark.ranks
def test_a_run_goes_on_with_the_model_that_was_saved_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(layers=1, max_steps=1, ranks=1, save_folder=tmp_path)
    flags = f"train --model gpt2 --model-size nano --seq-len 16 --ranks 1 --max-steps 2 --resume {tmp_path}"
    assert main([*flags.split(), "--layers", "1", "--profile-json", str(tmp_path / "run.json")]) == 0
    assert json.loads((tmp_path / "run.json").read_text())["step"] == 2
    capsys.readouterr()
    assert main(flags.split()) == 2
    assert "the model's layers is 2 and" in capsys.readouterr().err


@pytest.mark.ranks
@pytest.mark.timeout(200)
def test_row_12_a_compiled_run_trains_as_one_that_is_not() -> None:
    """At stage 3, with all that is in its way there; `test_zero_compile.py` has the others."""
    settings: dict[str, Any] = {"zero_stage": 3, "max_steps": 2}
    report = run(**settings, compile=True, compile_backend="aot_eager", checkpoint_activations=True)
    assert report.loss == pytest.approx(run(**settings, world="lockstep").loss, rel=1e-5)
    assert all(report.memory_measured[kind] == sizes for kind, sizes in report.memory_predicted.items())
    assert report.traffic_measured == report.traffic_predicted


@pytest.mark.ranks
def test_a_run_begins_with_the_weights_of_a_hugging_face_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(5)
    model = GPT2(GPT2Config(40, 16, 2, 2, max_seq_len=32, bias=True))
    save_folder(tmp_path / "hf", model.config, export(model.config, model.state_dict().__getitem__))
    flags = f"--dataset {folder} --seq-len 16 --ranks 2 --zero-stage 3 --max-steps 1 --eval-every 1 --eval-steps 2"
    line = ["train", *flags.split(), "--init-from", str(tmp_path / "hf"), "--profile-json", str(tmp_path / "run.json")]
    assert main([*line, "--save-folder", str(tmp_path / "run"), "--dropout", "0.1"]) == 0
    corpus = load_dataset(str(folder), seq_len=16)
    with torch.no_grad():
        loss = sum(model(*Batches(corpus.valid, 16, 12).micro_batch(step)).item() for step in range(2)) / 2
    profile = json.loads((tmp_path / "run.json").read_text())
    assert profile["validation_loss"]["0"] == pytest.approx(loss, rel=1e-5) and profile["config"]["vocab_size"] == 40
    # What was saved knows its shape, and goes on.
    assert load_learned(tmp_path / "run")[0].config == model.config
    assert main([*line, "--max-steps", "2", "--resume", str(tmp_path / "run")]) == 0
    assert f"gpt2 of {tmp_path / 'hf'}" in capsys.readouterr().out
    refused = {"--layers 2": "layers is 2", "--dataset no": "dataset is 'no'", "--init-from x": "has no config.json"}
    for more, said in refused.items():
        assert main([*line, *more.split()]) == 2
        assert said in capsys.readouterr().err


def test_compile_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(InputError, match="finds no C"):
        check_here(RunSpec(compile=True))
    check_here(RunSpec(compile=True, compile_backend="eager"))


def test_of_a_text_that_cannot_be_prepared_whole_nothing_stays(tmp_path: Path) -> None:
    (tmp_path / "meta.json").mkdir()
    with pytest.raises(OSError, match=r"meta\.json"):
        write_together(tmp_path, {"train.bin": b"new", "meta.json": b"of the new"})
    assert [path.name for path in tmp_path.iterdir()] == ["meta.json"]
