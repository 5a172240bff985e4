"""What the models refuse: unknown names, shapes that do not divide, batches that they cannot read."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from zerolab.errors import InputError
from zerolab.models import SIZES, GPT2Config, LlamaConfig, build

NAMES = sorted(SIZES)


def test_an_unknown_name_or_size_lists_the_choices() -> None:
    with pytest.raises(InputError, match="no model 'bert'; choose one of llama, gpt2"):
        build("bert", "tiny")
    with pytest.raises(InputError, match="llama has no size 'huge'; choose one of nano, tiny, small, medium"):
        build("llama", "huge")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 5}, "dim 48 is not a multiple of heads 5"),
        ({"kv_heads": 4}, "heads 6 is not a multiple of kv_heads 4"),
        ({"heads": 16, "kv_heads": 1}, "dim / heads is 3, but rotary"),
        ({"layers": 0}, "layers is 0, but must be"),
        ({"vocab_size": -1}, "vocab_size is -1, but must be"),
        ({"max_seq_len": 2.5}, "max_seq_len is 2.5, but must be"),
        ({"head_size": 7}, "head_size is 7, but rotary"),
        ({"heads": 5, "kv_heads": 1, "head_size": 0}, "head_size is 0"),
    ],
)
def test_inconsistent_shapes_are_refused_by_name(change: dict[str, int], message: str) -> None:
    shape = {"vocab_size": 64, "dim": 48, "layers": 1, "heads": 6, "kv_heads": 2, "ffn_dim": 64} | change
    with pytest.raises(InputError, match=re.escape(message)):
        LlamaConfig(**shape)  # type: ignore[arg-type]


def test_gpt2_refuses_heads_that_do_not_divide() -> None:
    with pytest.raises(InputError, match="dim 48 is not a multiple of heads 5"):
        GPT2Config(vocab_size=64, dim=48, layers=1, heads=5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("tokens", "targets", "message"),
    [
        (torch.zeros(1, 9, dtype=torch.int64), None, "9 tokens is longer than the model's max_seq_len of 8"),
        (torch.tensor([[1, 2]]), torch.tensor([[1], [2]]), "targets have shape [2, 1] and tokens [1, 2]"),
    ],
)
def test_batches_that_would_pass_without_a_word_are_refused(
    name: str, tokens: Tensor, targets: Tensor | None, message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        build(name, "nano", max_seq_len=8)(tokens, targets)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("tokens", "targets"),
    [([[1, 256]], None), ([[-1, 2]], None), ([[1, 2]], [[1, 300]]), ([1, 2], None), ([[0.0, 0.0]], None)],
)
def test_others_are_refused_by_torch(name: str, tokens: list, targets: list | None) -> None:
    given = [None if each is None else torch.tensor(each) for each in (tokens, targets)]
    with pytest.raises((IndexError, RuntimeError)):
        build(name, "nano", max_seq_len=8)(*given)


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_batch_leaves_the_model_usable(name: str) -> None:
    torch.manual_seed(0)
    model, data = build(name, "nano"), (torch.arange(16).reshape(2, 8), torch.arange(1, 17).reshape(2, 8))
    expected = model(*data)
    with pytest.raises(IndexError):
        model(data[0] + 256)
    assert torch.equal(model(*data), expected)
