"""Groups of ranks: who is in one, what is promised across two, and how reports, meters and tracers name them.

That every collective keeps its contract in groups is among the claims of `test_collectives.py`.
"""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from collective_cases import WORLDS, every_world, run

from zerolab.collectives import Collectives, Link, LocalCollectives, overlap_seconds, phase, wire_bytes
from zerolab.collectives.call import Call, Group
from zerolab.errors import DeadlockError, InputError, MismatchError, RankError
from zerolab.ranks.board import GROUPS, Board, BoardPen, find_failure

pytestmark = pytest.mark.timeout(150)


# Who is in a group


@pytest.mark.ranks
@every_world
def test_a_split_is_ordered_by_keys_and_a_subgroup_as_it_was_listed(world: tuple[str, str]) -> None:
    def members(comm: Collectives) -> list[Any]:
        rows = comm.split(comm.rank // 2, name="row")
        turned = comm.split(7, key=-(comm.rank % 2))
        few = comm.split(None if comm.rank == 1 else True)
        assert rows is not None and turned is not None and type(rows) is type(comm)
        three = comm.subgroup([3, 0, 2], name="three")
        listed: list[Any] = []
        if three is not None:
            two = three.subgroup([2, 1])
            listed = [three.rank, three.ranks, two.ranks if two else None, two.rank if two else None]
        return [(rows.rank, rows.size, rows.ranks, rows.name), turned.ranks, few.ranks if few else None, listed]

    four = run(members, ranks=4, world=world)
    assert [found[0] for found in four] == [
        (0, 2, (0, 1), "row"),
        (1, 2, (0, 1), "row"),
        (0, 2, (2, 3), "row"),
        (1, 2, (2, 3), "row"),
    ]
    assert [found[1] for found in four] == [(1, 3, 0, 2)] * 4
    assert [found[2] for found in four] == [(0, 2, 3), None, (0, 2, 3), (0, 2, 3)]
    # A part of a subgroup is listed by its own numbers.
    assert [found[3] for found in four] == [
        [1, (3, 0, 2), (2, 0), 1],
        [],
        [2, (3, 0, 2), (2, 0), 0],
        [0, (3, 0, 2), None, None],
    ]


def test_the_world_s_ranks_are_its_own_numbers_and_it_has_no_name() -> None:
    comm = LocalCollectives()
    assert (comm.ranks, comm.name) == ((0,), "")
    alone = comm.split(0, name="me")
    assert alone is not None
    assert (alone.ranks, alone.name, alone.all_reduce(torch.ones(2)).tolist()) == ((0,), "me", [1.0, 1.0])


one_rank = LocalCollectives()
REFUSED: list[tuple[Callable[[], object], list[str]]] = [
    (lambda: one_rank.subgroup([0, 1]), ["[0, 1]", "ranks 0 to 0"]),
    (lambda: one_rank.subgroup([-1]), ["[-1]", "ranks 0 to 0"]),
    (lambda: one_rank.subgroup([0, 0]), ["[0, 0]", "each of them once"]),
    (lambda: one_rank.subgroup([]), ["[]", "name some"]),
]


@pytest.mark.parametrize(("call", "names"), REFUSED)
def test_a_group_that_cannot_be_is_refused_by_value_and_with_a_way_out(
    call: Callable[[], object], names: list[str]
) -> None:
    with pytest.raises(InputError) as refused:
        call()
    assert all(name in str(refused.value) for name in names), str(refused.value)


def test_a_colour_and_a_key_are_whole_numbers() -> None:
    for color, key in (("dp", None), (0, 0.5)):
        with pytest.raises(TypeError, match="integer"):
            one_rank.split(color, key)  # type: ignore[arg-type]


@pytest.mark.ranks
@every_world
def test_ranks_that_name_different_groups_are_told_who_said_what(world: tuple[str, str]) -> None:
    with pytest.raises(MismatchError, match=r"rank 0 'a' \[0, 1\], rank 1 'a' \[0, 1\], rank 2 'a' \[0, 2\]\)"):
        run(lambda comm: comm.subgroup([0, 1 + comm.rank // 2], name="a") is None, ranks=3, world=world)
    with pytest.raises(MismatchError, match=r"ranks of colour 1 gave their group other names than 'd+'; give one"):
        run(lambda comm: comm.split(comm.rank > 0, name="d" * (2 - comm.rank % 2)) is None, ranks=3, world=world)


# What is promised across groups


def both_groups(comm: Collectives) -> list[float]:
    """Calls of two groups, issued in another order by each rank."""
    one, two = comm.subgroup(range(comm.size), name="one"), comm.subgroup(range(comm.size), name="two")
    assert one is not None and two is not None
    found = []
    for at in range(20):
        groups = [(one, 1.0), (two, 2.0)]
        if (comm.rank + at) % 2:
            groups.reverse()
        handles = {value: group.all_reduce_async(torch.full((50,), value)) for group, value in groups}
        # Some wait for the call that others have not issued first.
        found += [handles[value].wait().mean().item() for value in (1.0, 2.0)]
    return found


def depends_on_a_message(comm: Collectives) -> list[float]:
    """Rank 1 ends the group's call before it sends, so rank 0 must get on with it while it waits for the message."""
    group, note, summed = comm.subgroup([0, 1]), torch.zeros(1), torch.ones(5)
    assert group is not None
    if comm.rank == 0:
        handle = group.all_reduce_async(summed)
        comm.recv(note, 1)
        handle.wait()
    else:
        group.all_reduce(summed)
        comm.send(note + 7, 0)
    return [summed.sum().item(), note.item()]


def cross(comm: Collectives) -> list[float]:
    """Messages of two groups and of the world between the same two ranks."""
    comms = [comm, comm.subgroup([0, 1]), comm.subgroup([1, 0])]
    into = torch.zeros(3, 2)
    if comm.rank == 0:
        sent = [c.isend(torch.full((2,), float(at)), c.ranks.index(1)) for at, c in enumerate(comms)]  # type: ignore[union-attr]
        for request in sent:
            request.wait()
    else:
        # Posted the other way round.
        posted = [comms[at].irecv(into[at], comms[at].ranks.index(0)) for at in (2, 1, 0)]  # type: ignore[union-attr]
        for request in posted:
            request.wait()
    return into[:, 0].tolist()


def leaves_early(comm: Collectives) -> float:
    """The world is closed while others still wait for a group's calls."""
    group = comm.split(0)
    assert group is not None
    x = torch.ones(3)
    handles = [group.all_reduce_async(x) for _ in range(3)]
    if comm.rank == 0:
        comm.close()
    return handles[-1].wait()[0].item()


@pytest.mark.ranks
@every_world
def test_groups_wait_for_neither_each_other_nor_each_other_s_messages(world: tuple[str, str]) -> None:
    def all_of_them(comm: Collectives) -> list[Any]:
        return [both_groups(comm), depends_on_a_message(comm), cross(comm), leaves_early(comm)]

    first, second = run(all_of_them, ranks=2, world=world)
    assert first == [[2.0, 4.0] * 20, [10.0, 7.0], [0.0] * 3, 8.0]
    assert second == [[2.0, 4.0] * 20, [10.0, 0.0], [0.0, 1.0, 2.0], 8.0]


@pytest.mark.ranks
def test_a_group_s_tensors_lie_in_the_rank_s_one_arena() -> None:
    def share(comm: Collectives) -> list[bool]:
        group = comm.split(comm.rank % 2)
        assert group is not None
        x = group.allocate(1000).fill_(1.0)
        comm.all_reduce(x)
        group.close()
        # The arena is the world's, and goes on.
        return [group._peers is comm._peers, comm.all_reduce(comm.allocate(3).fill_(1.0)).sum().item() == 9.0]

    assert run(share, ranks=3, world=WORLDS[2]) == [[True, True]] * 3


# Reports


def other_size(group: Collectives) -> None:
    group.barrier()
    group.all_reduce(torch.ones(4 + (group.rank == 1)))


# Gloo ends the process where sizes differ, so that its own collectives are checked.
UNCHECKED = [(world, False) for world in WORLDS if world[1] != "torch"]


@pytest.mark.ranks
@pytest.mark.parametrize(("world", "check"), [*UNCHECKED, *[(world, True) for world in WORLDS]], ids=str)
def test_a_mismatch_in_a_group_names_the_group_and_the_world_s_ranks(world: tuple[str, str], check: bool) -> None:
    def in_a_group(comm: Collectives) -> None:
        group = comm.subgroup([1, 3], name="dp")
        if group is not None:
            other_size(group)

    with pytest.raises(MismatchError) as error:
        run(in_a_group, ranks=4, world=world, check=check)
    assert "rank 1 is in #2 all_reduce of 4 float32 in dp (ranks 1, 3)" in str(error.value)
    assert "rank 3 is in #2 all_reduce of 5 float32 in dp (ranks 1, 3)" in str(error.value)


@pytest.mark.ranks
@every_world
def test_groups_in_different_calls_are_no_mismatch(world: tuple[str, str]) -> None:
    """Calls of one number, of different sizes, while the parent looks several times."""

    def differ(comm: Collectives) -> float:
        group = comm.split(comm.rank % 2)
        assert group is not None
        if comm.rank < 2 and world[0] == "processes":
            time.sleep(0.5)
        return group.all_reduce(torch.ones(3 + comm.rank % 2)).sum().item()

    assert run(differ, ranks=4, world=world, check=True) == [6.0, 8.0, 6.0, 8.0]


@pytest.mark.ranks
@every_world
def test_groups_called_in_crossed_order_are_a_deadlock_that_names_both(world: tuple[str, str]) -> None:
    def crossed(comm: Collectives) -> None:
        groups = [comm.subgroup([0, 1], name="first"), comm.subgroup([0, 1], name="second")]
        for group in groups[:: -1 if comm.rank else 1]:
            assert group is not None
            group.all_reduce(torch.ones(4))

    from zerolab.ranks import launch

    with pytest.raises(DeadlockError) as error:
        launch(crossed, ranks=2, world=world[0], collectives=world[1], timeout=2)
    said = str(error.value)
    assert "#1 all_reduce of 4 float32 in first (ranks 0, 1)" in said.partition("; rank 1")[0]
    assert "#1 all_reduce of 4 float32 in second (ranks 0, 1)" in said.partition("; rank 1")[2]


@pytest.mark.ranks
@pytest.mark.parametrize("world", WORLDS[:3], ids="-".join)
def test_a_rank_that_returned_before_its_group_s_call_is_named_with_the_group(world: tuple[str, str]) -> None:
    def leave(comm: Collectives) -> None:
        group = comm.split(0, name="dp")
        assert group is not None
        if comm.rank != 2:
            group.all_reduce(torch.ones(6))

    with pytest.raises(DeadlockError) as error:
        run(leave, ranks=3, world=world)
    assert "#1 all_reduce of 6 float32 in dp (ranks 0, 1, 2)" in str(error.value)
    assert "rank 2 has already returned" in str(error.value) or "rank 2 has returned" in str(error.value)


@pytest.mark.ranks
@pytest.mark.parametrize("collectives", ["auto", "ring", "torch"])
def test_a_rank_that_makes_one_call_fewer_in_its_group_is_named_with_the_group(collectives: str) -> None:
    def one_fewer(comm: Collectives) -> None:
        group = comm.split(comm.rank // 3, name="dp")
        assert group is not None
        for _ in range(3 - (comm.rank == 1)):
            group.all_reduce(torch.ones(6))

    from zerolab.ranks import launch

    with pytest.raises(DeadlockError) as error:
        launch(one_fewer, ranks=4, collectives=collectives, timeout=50)
    assert "#3 all_reduce of 6 float32 in dp (ranks 0, 1, 2), but rank 1 has already returned" in str(error.value)


@pytest.fixture
def board(tmp_path):
    board = Board(3, tmp_path / "board")
    return board


def call_in(group: Group | None, number: int, numel: int) -> Call:
    return Call("all_reduce", numel, "float32", 4, number, group=group)


def test_calls_of_one_number_are_compared_within_their_group_alone(board) -> None:
    one, two = Group("a", (0, 1)), Group("b", (0, 2))
    pens = [BoardPen(board, rank) for rank in range(3)]
    pens[0].enter(call_in(one, 1, 8))
    pens[1].enter(call_in(None, 1, 9))
    pens[2].enter(call_in(two, 1, 10))
    assert find_failure(board.read_all(), board.read_all(), set()) is None
    pens[1].leave()
    pens[1].enter(call_in(one, 1, 9))
    found = find_failure(board.read_all(), board.read_all(), set())
    assert isinstance(found, MismatchError)
    assert "rank 0 is in #1 all_reduce of 8 float32 in a (ranks 0, 1) while rank 1 is in #1" in str(found)


def test_a_returned_rank_is_missed_only_in_groups_whose_call_it_never_entered(board) -> None:
    """And of a group that the board had no room for, nothing is concluded."""
    group, meet = Group("a", (0, 1)), 3
    waiting, gone, _ = [BoardPen(board, rank) for rank in range(3)]
    waiting.enter(call_in(group, 2, 8))
    waiting.wait(meet, 1)
    gone.enter(call_in(group, 2, 8))
    gone.leave()
    # Rank 2 is in no group: that it is gone means nothing.
    assert find_failure(board.read_all(), board.read_all(), {1, 2}) is None
    waiting.enter(call_in(group, 3, 8))
    found = find_failure(board.read_all(), board.read_all(), {1, 2})
    assert isinstance(found, DeadlockError) and "rank 1 has already returned" in str(found)
    crowd = [Group(str(at), (0, 1)) for at in range(GROUPS + 1)]
    for at, pen in enumerate((waiting, gone)):
        for some in crowd[at:]:
            pen.enter(call_in(some, 1, 8))
            pen.leave()
    gone.enter(call_in(Group("late", (0, 1)), 1, 8))
    waiting.enter(call_in(Group("late", (0, 1)), 1, 8))
    assert find_failure(board.read_all(), board.read_all(), {1, 2}) is None


def test_a_group_of_many_ranks_is_named_by_its_first_and_its_last() -> None:
    assert str(Group("dp", tuple(range(0, 64, 4)))) == "in dp (16 ranks 0, 4, 8, 12, 16, 20, ..., 60)"
    assert str(Group("", (5,))) == "among rank 5"


# What is counted and recorded


@pytest.mark.ranks
@every_world
def test_one_meter_counts_every_group_by_the_group_s_size(world: tuple[str, str]) -> None:
    def count(comm: Collectives) -> dict[str, Any]:
        row, column = comm.split(comm.rank // 3, name="row"), comm.split(comm.rank % 3)
        assert row is not None and column is not None and comm.meter is not None
        assert row.meter is comm.meter
        comm.meter.reset()
        with phase("first"):
            comm.all_reduce(torch.ones(60))
            row.all_gather(torch.ones(10))
        with phase("second"):
            column.reduce_scatter_async(torch.ones(12)).wait()
        meter = comm.meter
        return {
            "all": meter.bytes_by_group(),
            "first": meter.bytes_by_group("first"),
            "collectives": meter.bytes_by_collective(),
            "row": (row.size, row.rank),
            "column": column.ranks,
        }

    for rank, found in enumerate(run(count, ranks=6, world=world)):
        world_bytes = wire_bytes("all_reduce", 60, 4, 6, rank)
        row_bytes = wire_bytes("all_gather", 30, 4, *found["row"])
        column_bytes = wire_bytes("reduce_scatter", 12, 4, 2, 0)
        column = f"ranks {rank % 3}, {rank % 3 + 3}"
        assert found["all"] == {"world": world_bytes, "row": row_bytes, column: column_bytes}
        assert found["first"] == {"world": world_bytes, "row": row_bytes}
        assert sum(found["collectives"].values()) == sum(found["all"].values())


def test_a_message_in_a_group_counts_as_sent_in_it() -> None:
    def talk(comm: Collectives) -> dict[str, int]:
        group = comm.subgroup([1, 0], name="pair")
        assert group is not None and comm.meter is not None
        if comm.rank == 0:
            group.send(torch.zeros(6), 0)
        else:
            group.recv(torch.zeros(6), 1)
        return comm.meter.bytes_by_group()

    assert run(talk, ranks=2) == [{"pair": 24}, {}]


@pytest.mark.ranks
@every_world
def test_the_tracer_has_a_span_for_each_collective_with_its_group_and_for_each_own_one(world: tuple[str, str]) -> None:
    def traced(comm: Collectives) -> list[tuple[Any, ...]]:
        group, tracer = comm.split(0, name="dp"), comm.tracer
        assert group is not None and tracer is not None
        group.all_reduce_async(torch.ones(3)).wait()
        with tracer.span("multiply"):
            torch.ones(10, 10) @ torch.ones(10, 10)
        comm.barrier()
        assert all(span.seconds >= 0 and span.rank == comm.rank for span in tracer.spans)
        return [(span.kind, span.name, span.group) for span in tracer.spans]

    named = [("split", ""), ("all_reduce", "dp")], [("barrier", "")]
    before, after = ([("collective", *pair) for pair in pairs] for pairs in named)
    spans = [*before, ("compute", "multiply", ""), *after]
    assert run(traced, ranks=2, world=world, trace=True) == [spans] * 2


def test_two_groups_of_a_rank_share_its_wire_and_two_ranks_groups_do_not() -> None:
    link = Link(gbit_per_s=1.0)

    def both(comm: Collectives, shared: bool) -> None:
        pairs = [[0, 1], [0, 2] if shared else [2, 3]]
        groups = [comm.subgroup(pair) for pair in pairs]
        handles = [group.all_reduce_async(torch.ones(31_250)) for group in groups if group is not None]
        for handle in handles:
            handle.wait()

    once = link.ring_seconds("all_reduce", 31_250, 4, 2)
    made = run(lambda comm: [comm.subgroup([0, 1]) is None for _ in range(2)], ranks=4, link=link).seconds
    assert run(both, True, ranks=4, link=link).seconds - made == pytest.approx(2 * once)
    assert run(both, False, ranks=4, link=link).seconds - made == pytest.approx(once)


def test_a_group_s_transport_knows_its_own_ranks_alone() -> None:
    def wrong_peer(comm: Collectives, peer: int) -> None:
        group = comm.subgroup([0, 2])
        if group is not None:
            group.send(torch.ones(1), peer)

    with pytest.raises(RankError, match="no rank 2; name a rank from 0 to 1"):
        run(wrong_peer, 2, ranks=3)


def test_groups_overlap_in_time_where_their_ranks_differ() -> None:
    """Spans are on the world's clock, whatever the group."""

    def traced(comm: Collectives) -> Any:
        group = comm.split(comm.rank // 2)
        assert group is not None and comm.tracer is not None
        comm.tracer.spans.clear()
        group.all_reduce(torch.ones(31_250))
        return [(span.start, span.stop) for span in comm.tracer.spans]

    one, _, other, _ = run(traced, ranks=4, trace=True, link=Link(gbit_per_s=1.0))
    assert overlap_seconds(one, other) == pytest.approx(1e-3)
