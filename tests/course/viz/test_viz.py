"""Pictures show what ran, and say the same in text."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zerolab.collectives import Link, RingCollectives, wire_bytes
from zerolab.course.viz import (
    Picture,
    Source,
    bars,
    bucket_explorer,
    ring_steps,
    shard_map,
    step_circle,
    text_table,
    timeline,
)
from zerolab.course.viz.boxes import hops_of
from zerolab.course.viz.film import COLLECTIVES, Moment, film
from zerolab.course.viz.shards import shard_frames, shard_text
from zerolab.errors import InputError
from zerolab.flat import lay_out
from zerolab.ranks import launch


def test_a_shard_map_shows_each_ranks_pieces_to_scale_and_in_its_table() -> None:
    layout = lay_out({"w": (6,), "b": (3,)}, ranks=2, align=4)
    picture = shard_map(layout)
    assert picture.numbers.splitlines() == [
        "        parameter     elements  numel  bytes",
        "rank 0          w  [0, 6) of 6      6     24",
        "rank 0    padding                   2      8",
        "rank 1          b  [0, 3) of 3      3     12",
        "rank 1    padding                   5     20",
    ]
    marks = shard_frames(layout)[-1].drawing.marks
    # Eight elements are as wide as the row. Padding is crossed and lies beneath: what no parameter covers can be seen.
    row = marks["padding 0"]
    assert row.style.hatch == "xx" and [*marks].index("padding 1") < [*marks].index("piece 0 0")
    drawn = {name: (mark.at[0] - row.at[0], mark.at[2]) for name, mark in marks.items() if mark.shape == "rect"}
    assert drawn["piece 0 0"] == pytest.approx((0, row.at[2] * 6 / 8), abs=0.1)
    assert drawn["piece 1 1"] == pytest.approx((0, row.at[2] * 3 / 8), abs=0.1)
    assert "7 of all are padding" in picture.alt


@given(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=6), ranks=st.integers(1, 5))
def test_a_shard_map_accounts_for_every_element(sizes: list[int], ranks: int) -> None:
    layout = lay_out({f"p{at}": (size,) for at, size in enumerate(sizes)}, ranks)
    numels = [int(line.split()[-2]) for line in shard_text(layout)[1].splitlines()[1:]]
    assert sum(numels) == layout.numel


def test_the_bucket_explorer_prices_each_size_by_the_links_formula() -> None:
    shapes, link = {"w": (1000,), "v": (1000,), "u": (20,)}, Link(1.0, 100.0)
    picture = bucket_explorer(shapes, 2, link, 1024, in_flight=1)
    rows = {line.split()[0]: line.split() for line in picture.table.splitlines()[1:]}
    lengths = [lay_out({"w": (1000,)}, 2).numel, lay_out({"v": (1000,)}, 2).numel, lay_out({"u": (20,)}, 2).numel]
    by_hand = sum(link.ring_seconds("all_reduce", length, 4, 2) for length in lengths)
    assert rows["256"][1] == "3" and float(rows["256"][2]) == pytest.approx(1e3 * by_hand, abs=0.01)
    assert rows["1,024"][1:3] == ["(chosen)", "2"]
    assert rows["4,096"][1] == "1"
    assert float(rows["4,096"][2]) < float(rows["256"][2])
    # Of one bucket at a time the largest, of three all.
    assert rows["256"][3] == f"{4 * max(lengths) / 1e6:.2f}"
    three = bucket_explorer(shapes, 2, link, 256, in_flight=3).table.splitlines()[2].split()
    assert three[-1] == f"{4 * sum(lengths) / 1e6:.2f}" != rows["256"][3]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_the_watched_ring_reduces_each_chunk_at_its_owner(ranks: int) -> None:
    hops = hops_of("reduce_scatter", ranks)
    everybody = tuple(range(ranks))
    for rank, row in enumerate(hops):
        assert [len(hop.ranks) for hop in row] == list(range(1, ranks + 1)), "one summand more in each step"
        assert (row[-1].chunk, row[-1].ranks) == (rank, everybody)
        assert row[0].ranks == (rank,)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_watched_all_gather_passes_complete_chunks(ranks: int) -> None:
    for rank, row in enumerate(hops_of("all_gather", ranks)):
        assert [hop.chunk for hop in row] == [(rank - step) % ranks for step in range(ranks)]
        assert all(hop.sum(ranks) == "complete" for hop in row)


def test_ring_steps_says_in_text_what_it_draws() -> None:
    assert str(ring_steps("reduce_scatter", 3)).splitlines() == [
        "        sent in step 1  sent in step 2                end",
        "rank 0     chunk 2: g0  chunk 1: g2+g0  chunk 0: complete",
        "rank 1     chunk 0: g1  chunk 2: g0+g1  chunk 1: complete",
        "rank 2     chunk 1: g2  chunk 0: g1+g2  chunk 2: complete",
    ]


@pytest.mark.parametrize(("collective", "ranks"), [("broadcast", 4), ("all_gather", 1), ("all_gather", 9)])
def test_a_ring_that_cannot_be_drawn_is_refused(collective: str, ranks: int) -> None:
    for draw in (ring_steps, film):
        with pytest.raises(InputError):
            draw(collective, ranks)


def summands(moment: Moment) -> list[list[int]]:
    return [[len(hop.ranks) if hop else 0 for hop in row] for row in moment.held]


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_film_ends_as_the_collective_promises(collective: str, ranks: int) -> None:
    moments = film(collective, ranks, numel=17)
    assert len(moments) == 1 + (ranks - 1) * (2 if collective == "all_reduce" else 1)
    whole = [[ranks] * ranks for _ in range(ranks)]
    own = [[ranks if chunk == rank else 1 for chunk in range(ranks)] for rank in range(ranks)]
    assert summands(moments[-1]) == (own if collective == "reduce_scatter" else whole)
    # 17 is divided by none of these: chunks are uneven, and the bytes are those of the wire.
    assert moments[-1].sent == tuple(wire_bytes(collective, 17, 4, ranks, rank) for rank in range(ranks))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_a_message_brings_is_there_in_the_next_moment(collective: str) -> None:
    moments = film(collective, 4)
    for before, after in pairwise(moments):
        assert [(message.src, message.dst) for message in before.messages] == [(0, 1), (1, 2), (2, 3), (3, 0)]
        for message in before.messages:
            here = after.held[message.dst][message.hop.chunk]
            assert here and set(here.ranks) == {*message.hop.ranks, message.dst}
        sent = [now + message.nbytes for now, message in zip(before.sent, before.messages, strict=True)]
        assert sent == list(after.sent)


def test_bars_put_the_formula_beside_the_measured_value() -> None:
    picture = bars(["2", "4"], {"ring": [1, 1.5], "star": [1, 3]}, {"ring": [1, 1.5]}, unit="tensors")
    assert isinstance(picture, Picture)
    head, _, last = str(picture).splitlines()
    assert head.split() == ["ring,", "measured", "ring,", "formula", "star,", "measured"]
    assert last.split() == ["4", "1.5", "1.5", "3"]
    assert bars(["2"], {"ring": [1]}, kind="computed").table.split()[:2] == ["ring,", "computed"]


def test_a_tall_table_of_bars_has_a_row_for_each_bar() -> None:
    names = {"a way with a long name": [1, 1.5], "another with a longer name": [1, 3]}
    picture = bars(["2 ranks", "4 ranks"], names, {"a way with a long name": [1, 2]}, tall=True)
    assert [line.rsplit(maxsplit=2)[-2:] for line in picture.table.splitlines()[1::2]] == [["1", "1"], ["1.5", "2"]]
    assert picture.table.splitlines()[0].split() == ["measured", "formula"]
    assert picture.table.splitlines()[-1].split("  ")[0] == "4 ranks, another with a longer name"
    assert max(map(len, picture.table.splitlines())) < 60
    assert bars(["2"], {"ring": [1]}, kind="computed", tall=True).table.split() == ["computed", "2,", "ring", "1"]


def test_the_timeline_ends_with_the_virtual_clock() -> None:
    link = Link(gbit_per_s=1, latency_us=10)
    ran = launch(lambda comm: comm.all_reduce(torch.ones(300)), ranks=3, world="lockstep", link=link, trace=True)
    picture = timeline({"ring": ran.trace}, ranks=3)
    # 2 (N-1) messages a rank.
    assert str(picture).splitlines()[1].split() == ["ring", str(3 * 4), f"{ran.seconds * 1e3:.4g}"]
    still = launch(lambda comm: comm.all_reduce(torch.ones(3)), ranks=2, world="lockstep", trace=True)
    with pytest.raises(InputError, match="with trace=True and a link"):
        timeline({"ring": still.trace}, ranks=2)


def test_the_source_shown_is_the_source_that_runs() -> None:
    shown = Source(RingCollectives._all_gather)
    assert repr(shown).startswith("zerolab.collectives.ring.RingCollectives._all_gather\n\ndef _all_gather(")
    assert "```python\ndef _all_gather(" in shown._repr_markdown_()


def test_a_text_table_lines_up() -> None:
    assert text_table(["", "n"], [["a", 10], ["bb", 5]]).splitlines() == ["     n", "a   10", "bb   5"]


# The circle of a step


@pytest.mark.parametrize(
    ("host", "crossing", "kept"),
    [([], 0, 16), (["gradients", "optimizer"], 4, 2), (["parameters"], 6, 14), (["optimizer"], 4, 4)],
)
def test_an_arrow_of_the_circle_crosses_the_link_where_here_meets_there(
    host: list[str], crossing: int, kept: int
) -> None:
    picture = step_circle(host)
    assert picture.verdict == f"{crossing} bytes a parameter cross the link in a step, {kept} stay on the device"
    rows = picture.numbers.splitlines()[1:]
    assert sum(int(row.split()[-2]) for row in rows if row.endswith("yes")) == crossing


def test_the_circle_names_a_state_that_does_not_move() -> None:
    with pytest.raises(InputError, match="'activations' is no state that moves"):
        step_circle(["activations"])
