"""How states rest in few bytes: what comes back, and what never does."""

import pytest
import torch

from zerolab.precision.codec import BLOCK, Codec, codec_of

# Half a step of the mantissa, 10 and 3 bits: the largest relative error of a normal number.
ERROR = {"fp16": 2.0**-11, "fp8": 2.0**-4}


def rested(codec: Codec, values: torch.Tensor) -> torch.Tensor:
    raw = torch.full((codec.nbytes(values.numel()),), 0x7E, dtype=torch.uint8)
    codec.encode(values, raw)
    out = torch.full_like(values, 7.0)
    codec.decode(raw, out)
    return out


def drawn(blocks: int) -> torch.Tensor:
    """Blocks of very different sizes, with values of a block within 2**5 of its largest."""
    generator = torch.Generator().manual_seed(0)
    values = 2.0 ** (5 * torch.rand(blocks, BLOCK, generator=generator))
    sizes = 10.0 ** torch.linspace(-25, 5, blocks).unsqueeze(1)
    return (values * sizes).flatten()


@pytest.mark.parametrize("format", ERROR)
def test_values_near_their_blocks_largest_come_back_to_the_formats_precision(format: str) -> None:
    values = drawn(30)
    signs = torch.randn(values.numel(), generator=torch.Generator().manual_seed(1)).sign()
    first = codec_of("exp_avg", format)
    torch.testing.assert_close(rested(first, signs * values), signs * values, rtol=1.01 * ERROR[format], atol=0.0)
    # A root is squared, so its error doubles.
    second = codec_of("exp_avg_sq", format)
    torch.testing.assert_close(rested(second, values), values, rtol=2.2 * ERROR[format], atol=0.0)


@pytest.mark.parametrize("format", ERROR)
def test_a_second_moment_that_is_not_zero_never_rests_as_zero(format: str) -> None:
    values = torch.zeros(BLOCK)
    values[:3] = torch.tensor([1.0, 1e-9, 1e-18])
    back = rested(codec_of("exp_avg_sq", format), values)
    assert (back[:3] >= values[:3] * (1 - 2.2 * ERROR[format])).all() and not back[3:].any()


@pytest.mark.parametrize("format", ERROR)
def test_a_first_moment_that_fades_away_becomes_zero_and_never_nan(format: str) -> None:
    """An embedding's row that no text has any more: its gradient is zero, its moment shrinks at every step."""
    codec, values = codec_of("exp_avg", format), torch.zeros(BLOCK)
    values[:8] = torch.linspace(-1e-3, 1e-3, 8)
    sizes = []
    for _ in range(1200):
        values = rested(codec, 0.9 * values)
        sizes.append(values.abs().max().item())
    assert sizes == sorted(sizes, reverse=True)
    assert 0 < sizes[500] < 1e-20 and sizes[-1] == 0


@pytest.mark.parametrize("format", ERROR)
def test_a_nan_is_seen_in_its_block_and_in_no_other(format: str) -> None:
    values = torch.ones(2 * BLOCK)
    values[BLOCK + 3] = torch.nan
    back = rested(codec_of("exp_avg", format), values)
    assert (back[:BLOCK] == 1).all() and back[BLOCK + 3].isnan()


@pytest.mark.parametrize("format", ["fp32", "bf16"])
def test_plain_formats_are_casts_without_scales(format: str) -> None:
    codec, values = codec_of("exp_avg_sq", format), drawn(2)
    assert codec.nbytes(256) == 256 * codec.dtype.itemsize
    assert torch.equal(rested(codec, values), values.to(codec.dtype).float())
