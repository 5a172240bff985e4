"""Text, tokens and batches: the same sequences for every number of ranks."""

from __future__ import annotations

import builtins
import logging
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zerolab.data import Batches, ByteTokenizer, Text, check_division, load_corpus, load_text, split
from zerolab.data import text as text_module
from zerolab.data.batches import sequence_start
from zerolab.errors import InputError
from zerolab.models import build

TOKENS = torch.arange(1000, dtype=torch.int32)

# Batches


@settings(max_examples=40)
@given(
    ranks=st.integers(1, 5),
    accumulation=st.integers(1, 4),
    per_rank=st.integers(1, 3),
    seq_len=st.integers(1, 20),
    seed=st.integers(0, 2**63),
    step=st.integers(0, 10**9),
)
def test_ranks_in_order_hold_the_batch_of_one_process(
    ranks: int, accumulation: int, per_rank: int, seq_len: int, seed: int, step: int
) -> None:
    size = ranks * accumulation * per_rank
    whole = Batches(TOKENS, seq_len, size, accumulation=accumulation, seed=seed).step(step)
    parts = [
        Batches(TOKENS, seq_len, size, ranks, rank, accumulation, seed=seed).step(step) for rank in range(ranks)
    ]  # fmt: skip
    for micro_batch in range(accumulation):
        for side in (0, 1):
            joined = torch.cat([parts[rank][micro_batch][side] for rank in range(ranks)])
            assert torch.equal(joined, whole[micro_batch][side])
            assert all(len(part[micro_batch][side]) == per_rank for part in parts)


@settings(max_examples=40)
@given(accumulation=st.sampled_from([1, 2, 3, 4, 6, 12]), step=st.integers(0, 100))
def test_accumulation_cuts_the_same_batch(accumulation: int, step: int) -> None:
    whole = Batches(TOKENS, 8, 12).micro_batch(step)
    cut = Batches(TOKENS, 8, 12, accumulation=accumulation).step(step)
    for side in (0, 1):
        assert torch.equal(torch.cat([micro_batch[side] for micro_batch in cut]), whole[side])


@settings(max_examples=40)
@given(seq_len=st.integers(1, 999), step=st.integers(0, 1000))
def test_a_sequence_is_a_run_of_the_text_and_targets_lie_one_further(seq_len: int, step: int) -> None:
    inputs, targets = Batches(TOKENS, seq_len, 2).micro_batch(step)
    assert inputs.shape == targets.shape == (2, seq_len)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs, inputs[:, :1] + torch.arange(seq_len))
    assert torch.equal(targets, inputs + 1)


def test_a_batch_depends_on_the_seed_and_the_step_and_on_no_call_before() -> None:
    batches = Batches(TOKENS, 8, 4, seed=3)
    later = batches.micro_batch(7)[0]
    batches.micro_batch(0)
    assert torch.equal(batches.micro_batch(7)[0], later)
    assert not torch.equal(batches.micro_batch(8)[0], later)
    assert not torch.equal(Batches(TOKENS, 8, 4, seed=4).micro_batch(7)[0], later)


def test_batches_leave_the_text_and_each_other_alone() -> None:
    tokens = TOKENS.clone()
    batches = Batches(tokens, 8, 4)
    inputs, targets = batches.micro_batch(0)
    expected = targets.clone()
    inputs.zero_()
    assert torch.equal(tokens, TOKENS) and torch.equal(targets, expected)


def test_every_place_in_the_text_is_drawn_about_as_often() -> None:
    starts = torch.tensor([sequence_start(0, step, index, 10) for step in range(100) for index in range(100)])
    counts = torch.bincount(starts, minlength=10)
    assert counts.min() > 850 and counts.max() < 1150  # 1000 expected, standard deviation 30


def test_starts_are_the_same_on_every_machine() -> None:
    assert [sequence_start(0, 0, index, 1000) for index in range(4)] == [253, 977, 920, 611]


@pytest.mark.parametrize(
    ("batch_size", "ranks", "accumulation", "message"),
    [
        (10, 4, 1, "batch_size 10 is not a multiple of ranks 4 x accumulation 1 = 4; use 8 or 12."),
        (8, 3, 2, "batch_size 8 is not a multiple of ranks 3 x accumulation 2 = 6; use 6 or 12."),
        (2, 4, 1, "batch_size 2 is not a multiple of ranks 4 x accumulation 1 = 4; use 4."),
        (0, 1, 1, "batch_size is 0"),
        (4, 0, 1, "ranks is 0"),
        (4, 1, -1, "accumulation is -1"),
    ],
)
def test_a_batch_that_does_not_divide_is_refused_with_sizes_that_do(
    batch_size: int, ranks: int, accumulation: int, message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        check_division(batch_size, ranks, accumulation)
    with pytest.raises(InputError, match=re.escape(message)):
        Batches(TOKENS, 8, batch_size, ranks, accumulation=accumulation)


def test_other_bad_arguments_of_batches_are_refused() -> None:
    with pytest.raises(InputError, match="rank is 2, but there are 2 ranks; use 0 to 1"):
        Batches(TOKENS, 8, 4, ranks=2, rank=2)
    with pytest.raises(InputError, match="seq_len is 0, but must be at least 1"):
        Batches(TOKENS, 0, 4)
    with pytest.raises(InputError, match=r"seq_len is 1000, but must be .* below the 1000 tokens"):
        Batches(TOKENS, 1000, 4)
    with pytest.raises(InputError, match=r"torch\.float32 of shape"):
        Batches(TOKENS.float(), 8, 4)


# Train and validation


@settings(max_examples=40)
@given(length=st.integers(22, 3000), fraction=st.floats(0.01, 0.99))
def test_the_split_keeps_every_token_once_and_a_sequence_on_each_side(length: int, fraction: float) -> None:
    tokens = torch.arange(length)
    train, valid = split(tokens, seq_len=10, valid_fraction=fraction)
    assert torch.equal(torch.cat([train, valid]), tokens)
    assert len(train) >= 11 and len(valid) >= 11


def test_a_text_too_short_for_both_sides_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "short.txt"
    file.write_text("twelve bytes")
    with pytest.raises(InputError, match=r"short\.txt' has 12 tokens, but seq_len 128 needs at least 258"):
        load_corpus(str(file), seq_len=128)


# Tokens


@settings(max_examples=25)
@given(st.text())
def test_bytes_give_the_text_back(text: str) -> None:
    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode(text)
    assert tokens.dtype == torch.uint8 and tokens.tolist() == list(text.encode())
    assert tokenizer.decode(tokens) == text


def test_a_cut_character_decodes_to_a_mark_and_bad_tokens_are_refused() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode("é")[:1]) == "\ufffd"
    for wrong in ([1, 256], [1, -1]):
        with pytest.raises(ValueError, match="must be in range"):
            tokenizer.decode(wrong)
    with pytest.raises(TypeError):
        tokenizer.decode(torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(UnicodeEncodeError, match="position 1"):
        tokenizer.encode("a\ud800")


# Text


def test_the_embedded_text_is_prose_and_always_the_same() -> None:
    first, again = load_text(), load_text("embedded")
    assert len(first.text) > 300_000 and "statement" in first.text
    assert (first.source, first.note) == ("embedded", None)
    assert first.sha256 == again.sha256


def test_the_synthetic_text_is_deterministic_and_keeps_its_rule() -> None:
    text = load_text("synthetic", characters=5000).text
    assert len(text) == 5000 and text == load_text("synthetic", characters=5000).text
    assert text.startswith("84 + 75 = 159\n")
    for line in text.splitlines()[:-1]:  # the last one may be cut
        a, b, total = (int(number) for number in re.findall(r"\d+", line))
        assert a + b == total


def test_a_text_file_comes_whole(tmp_path: Path) -> None:
    file = tmp_path / "poem.txt"
    file.write_text("Grüße\n" * 100, encoding="utf-8")
    loaded = load_text(str(file))
    assert loaded == Text("Grüße\n" * 100, str(file), str(file))
    corpus = load_corpus(str(file), seq_len=16)
    assert ByteTokenizer().decode(torch.cat([corpus.train, corpus.valid])) == loaded.text


def test_bad_files_are_refused_with_their_fault(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no text file 'absent\.txt'"):
        load_text("absent.txt")
    with pytest.raises(InputError, match="there is no text file"):
        load_text(str(tmp_path))
    empty = tmp_path / "empty.txt"
    empty.touch()
    with pytest.raises(InputError, match=r"empty\.txt' has 0 tokens"):
        load_corpus(str(empty), seq_len=8)
    latin = tmp_path / "latin.txt"
    latin.write_bytes("naïve".encode("latin-1"))
    with pytest.raises(InputError, match=r"cannot be read .*byte 0xef in position 2.*in UTF-8"):
        load_text(str(latin))


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    file = tmp_path / "secret.txt"
    file.write_text("text")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InputError, match=r"cannot be read .*Permission denied"):
        load_text(str(file))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes need a POSIX system")
@pytest.mark.timeout(10)
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="there is no text file"):
        load_text(str(tmp_path / "pipe"))


# FineWeb-Edu; no test touches the network


def assert_fell_back(loaded: Text, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    assert (loaded.wanted, loaded.source) == ("fineweb-edu", "embedded")
    assert loaded.text == load_text("embedded").text
    assert loaded.note is not None and reason in loaded.note and "\n" not in loaded.note
    assert [record.getMessage() for record in caplog.records] == [loaded.note]
    assert caplog.records[0].levelno == logging.WARNING


def test_without_datasets_fineweb_falls_back_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real_import = builtins.__import__

    def no_datasets(name: str, *args: object, **kwargs: object) -> object:
        if name == "datasets":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", no_datasets)
    assert_fell_back(load_text("fineweb-edu"), "ImportError: datasets", caplog)


def test_without_a_network_fineweb_falls_back_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def offline() -> Iterator[str]:
        raise ConnectionError("name resolution failed\nand a long trace")

    monkeypatch.setattr(text_module, "stream_fineweb", offline)
    assert_fell_back(load_text("fineweb-edu"), "ConnectionError: name resolution failed", caplog)


@pytest.mark.timeout(10)
def test_a_silent_network_ends_at_the_time_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()

    def silent() -> Iterator[str]:
        released.wait()
        return iter(())

    monkeypatch.setattr(text_module, "stream_fineweb", silent)
    try:
        assert_fell_back(load_text("fineweb-edu", timeout_s=0.1), "no answer within 0.1 s", caplog)
    finally:
        released.set()


def test_a_stream_that_answers_is_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(text_module, "stream_fineweb", lambda: iter(["one", "two", "three"]))
    assert load_text("fineweb-edu", characters=7) == Text("one\ntwo", "fineweb-edu", "fineweb-edu")
    assert not caplog.records
    assert_fell_back(load_text("fineweb-edu", characters=100), "ended after 14 of 100", caplog)


# Together


@pytest.mark.parametrize(("name", "source"), [("llama", "embedded"), ("gpt2", "synthetic")])
def test_a_small_model_learns_from_a_few_steps(name: str, source: str) -> None:
    """Loss on text that it has not seen falls from log 256 = 5.55, nothing known, to below a bound."""
    corpus = load_corpus(source, seq_len=32)
    torch.manual_seed(0)
    model = build(name, "nano", max_seq_len=32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train, valid = Batches(corpus.train, 32, 8), Batches(corpus.valid, 32, 32).micro_batch(0)
    with torch.no_grad():
        before = model(*valid).item()
    for step in range(40):
        model(*train.micro_batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        after = model(*valid).item()
    assert 5.4 < before < 5.7
    assert after < (3.6 if source == "embedded" else 2.8)


def test_a_batch_split_over_ranks_has_the_gradient_of_the_whole() -> None:
    """What all later equalities rest on: the mean of the ranks' gradients is one process's gradient."""
    corpus = load_corpus("embedded", seq_len=16)
    torch.manual_seed(0)
    model = build("llama", "nano", max_seq_len=16).double()
    parameters = list(model.parameters())
    whole = torch.autograd.grad(model(*Batches(corpus.train, 16, 12).micro_batch(5)), parameters)
    for ranks, accumulation in [(2, 1), (3, 2), (4, 3)]:
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for rank in range(ranks):
            for data in Batches(corpus.train, 16, 12, ranks, rank, accumulation).step(5):
                for kept, gradient in zip(total, torch.autograd.grad(model(*data), parameters), strict=True):
                    kept.add_(gradient / (ranks * accumulation))
        for kept, gradient in zip(total, whole, strict=True):
            torch.testing.assert_close(kept, gradient, rtol=0, atol=1e-7)
