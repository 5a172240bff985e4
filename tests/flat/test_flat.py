"""The geometry of flat buffers holds what its docstrings promise, for every input; no process is started."""

from collections.abc import Mapping
from itertools import pairwise
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zerolab.errors import InputError
from zerolab.flat import ALIGN, BucketPlan, Layout, chunk_bounds, chunk_sizes, lay_out, split_by_size
from zerolab.flat.views import fill, nothings, point, point_at, view, zero_gaps

Model = Mapping[str, tuple[int, ...]]
# 0-dim, zero-sized, and sizes on both sides of every alignment below.
shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
models = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=4), shapes, max_size=6)
ranks = st.integers(1, 7)
aligns = st.sampled_from([1, 2, 3, 16])


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    return lay_out(draw(models), draw(ranks), draw(aligns))


# Slots, shards and padding


def slots_stand_in_order_at_aligned_starts_and_never_overlap(model: Model, layout: Layout) -> None:
    slots = layout.slots
    assert [(slot.name, slot.shape) for slot in slots] == list(model.items())
    assert all(slot.start % layout.align == 0 and slot.numel == prod(slot.shape) for slot in slots)
    assert all(one.stop <= other.start for one, other in pairwise(slots))


def shards_are_equally_long_equally_aligned_and_cover_the_bucket(model: Model, layout: Layout) -> None:
    shards = [layout.shard(rank) for rank in range(layout.ranks)]
    assert [stop - start for start, stop in shards] == [layout.shard_numel] * layout.ranks
    assert all(start % layout.align == 0 for start, _ in shards)
    assert [0, *(stop for _, stop in shards)] == [*(start for start, _ in shards), layout.numel]


def slots_and_gaps_partition_the_bucket(model: Model, layout: Layout) -> None:
    times_covered = [0] * layout.numel
    for start, stop in [*((slot.start, slot.stop) for slot in layout.slots), *layout.gaps()]:
        for at in range(start, stop):
            times_covered[at] += 1
    assert set(times_covered) <= {1}
    assert layout.numel - layout.used == sum(stop - start for start, stop in layout.gaps())


def pieces_of_all_ranks_are_the_slots_cut_at_shard_borders(model: Model, layout: Layout) -> None:
    owned: dict[str, list[int]] = {slot.name: [] for slot in layout.slots}
    for rank in range(layout.ranks):
        start, stop = layout.shard(rank)
        for piece in layout.pieces(rank):
            assert start <= piece.start < piece.stop <= stop
            owned[piece.slot.name] += range(piece.start, piece.stop)
    assert owned == {slot.name: list(range(slot.start, slot.stop)) for slot in layout.slots}


def padding_is_less_than_one_alignment_a_slot_and_one_row_of_shards(model: Model, layout: Layout) -> None:
    assert layout.numel - layout.used < layout.align * (len(model) + 1) * layout.ranks


@given(models, ranks, aligns)
def test_a_layout_holds_what_its_docstring_promises(model: Model, ranks: int, align: int) -> None:
    for holds in (
        slots_stand_in_order_at_aligned_starts_and_never_overlap,
        shards_are_equally_long_equally_aligned_and_cover_the_bucket,
        slots_and_gaps_partition_the_bucket,
        pieces_of_all_ranks_are_the_slots_cut_at_shard_borders,
        padding_is_less_than_one_alignment_a_slot_and_one_row_of_shards,
    ):
        holds(model, lay_out(model, ranks, align))


def test_more_ranks_than_elements_leave_shards_of_padding_only() -> None:
    layout = lay_out({"bias": (3,)}, ranks=4)
    assert (layout.numel, layout.shard_numel) == (4 * ALIGN, ALIGN)
    assert [len(layout.pieces(rank)) for rank in range(4)] == [1, 0, 0, 0]


def test_a_scalar_takes_one_element_and_an_empty_parameter_a_slot_without_any() -> None:
    layout = lay_out({"scale": (), "none": (0, 5), "bias": (2,)}, ranks=2, align=1)
    assert [(slot.start, slot.stop) for slot in layout.slots] == [(0, 1), (1, 1), (1, 3)]
    assert [piece.slot.name for rank in (0, 1) for piece in layout.pieces(rank)] == ["scale", "bias", "bias"]


def test_a_bucket_without_parameters_is_empty_on_every_rank() -> None:
    layout = lay_out({}, ranks=3)
    assert (layout.numel, layout.gaps(), [layout.pieces(rank) for rank in range(3)]) == (0, [], [[], [], []])


# Segments


@given(layouts(), st.data())
def test_segments_hold_exactly_the_pieces_of_their_group_and_padding_between(
    layout: Layout, data: st.DataObject
) -> None:
    group_of = {slot.name: data.draw(st.integers(0, 1)) for slot in layout.slots}
    plan = BucketPlan("unit", layout, 4, True, tuple(group_of.values()))
    for rank in [None, *range(layout.ranks)]:
        segments = plan.segments(rank)
        for slot in layout.slots:
            for at in range(slot.start, slot.stop):
                inside = [s.group for s in segments if s.start <= at < s.stop]
                mine = rank is None or layout.shard(rank)[0] <= at < layout.shard(rank)[1]
                assert inside == ([group_of[slot.name]] if mine else [])
        # As few as possible: neighbours differ, and each begins at a slot or at the shard, in whole alignments.
        assert all(one.group != other.group for one, other in pairwise(segments))
        elements = {at for slot in layout.slots for at in range(slot.start, slot.stop)}
        for segment in segments:
            assert segment.start in elements and segment.start % layout.align == segment.stop % layout.align == 0
            assert {*range(segment.stop - layout.align, segment.stop)} & elements


def test_a_frozen_bucket_has_no_segment() -> None:
    plan = BucketPlan("unit", lay_out({"w": (5,)}, 2), 4, trainable=False, groups=(None,))
    assert plan.segments() == plan.segments(0) == []


# Chunks and runs


@given(st.integers(0, 100), ranks)
def test_chunks_follow_tensor_split(numel: int, ranks: int) -> None:
    chunks = torch.arange(numel).tensor_split(ranks)
    assert chunk_sizes(numel, ranks) == [len(chunk) for chunk in chunks]
    assert [list(range(*bounds)) for bounds in chunk_bounds(numel, ranks)] == [chunk.tolist() for chunk in chunks]


@given(st.lists(st.integers(0, 20), max_size=12), st.integers(1, 25))
def test_runs_keep_the_order_and_exceed_the_limit_only_by_one_large_parameter(numels: list[int], limit: int) -> None:
    named = [(str(at), numel) for at, numel in enumerate(numels)]
    runs = split_by_size(named, limit)
    assert [name for run in runs for name in run] == [name for name, _ in named]
    size = dict(named)
    for run in runs:
        total = sum(size[name] for name in run)
        assert run and (total <= limit or max(size[name] for name in run) > limit)


def test_a_large_parameter_has_a_run_of_its_own() -> None:
    assert split_by_size([("a", 2), ("big", 9), ("b", 2), ("c", 1)], 4) == [["a"], ["big"], ["b", "c"]]
    assert split_by_size([("a", 2), ("big", 9)], None) == [["a", "big"]]


# Views


@given(layouts())
def test_filling_a_buffer_writes_every_slot_and_zeroes_every_gap(layout: Layout) -> None:
    flat = torch.full((layout.numel,), 7777.0)
    values = [torch.full(slot.shape, float(at + 1)) for at, slot in enumerate(layout.slots)]
    fill(flat, layout, values)
    assert all(torch.equal(view(flat, slot), value) for slot, value in zip(layout.slots, values, strict=True))
    assert all(not flat[start:stop].any() for start, stop in layout.gaps())


def test_parameters_on_a_buffer_see_its_bytes_and_keep_their_shapes() -> None:
    layout = lay_out({"weight": (2, 3), "scale": (), "none": (0,)}, ranks=2)
    parameters = [torch.nn.Parameter(torch.ones(slot.shape)) for slot in layout.slots]
    flat = torch.zeros(layout.numel)
    point_at(flat, layout, parameters)
    flat.fill_(5.0)
    assert [tuple(parameter.shape) for parameter in parameters] == [(2, 3), (), (0,)]
    assert all((parameter == 5.0).all() for parameter in parameters)
    point(parameters, nothings(parameters))
    assert [parameter.numel() for parameter in parameters] == [0, 0, 0]


def test_zeroing_gaps_leaves_slots_alone() -> None:
    layout = lay_out({"w": (3,), "b": (2,)}, ranks=2, align=4)
    flat = torch.ones(layout.numel)
    zero_gaps(flat, layout)
    assert flat.sum() == layout.used


# Refusals


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: lay_out({"w": (2,)}, 0), ["ranks is 0", "at least 1"]),
        (lambda: lay_out({"w": (2,)}, True), ["ranks is True"]),
        (lambda: lay_out({"w": (2,)}, 2.0), ["ranks is 2.0", "whole number"]),
        (lambda: lay_out({"w": (2,)}, 2, align=0), ["align is 0"]),
        (lambda: lay_out({"w": (2, -3)}, 2), ["'w'", "(2, -3)", "-3"]),
        (lambda: lay_out({"w": (2.5,)}, 2), ["'w'", "2.5", "whole number"]),
        (lambda: chunk_sizes(-1, 2), ["numel is -1", "at least 0"]),
        (lambda: chunk_bounds(4, 0), ["ranks is 0"]),
        (lambda: split_by_size([("w", 1)], 0), ["limit is 0"]),
        (lambda: lay_out({"w": (2,)}, 2).shard(2), ["no rank 2", "0 to 1"]),
        (lambda: lay_out({"w": (2,)}, 2).pieces(-1), ["no rank -1", "0 to 1"]),
    ],
)
def test_bad_geometry_is_refused_by_value(call, names: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        call()
    assert all(name in str(refused.value) for name in names)
