"""Published runs and their predictions: each with its source, none left out, near enough in the median."""

from statistics import median

from benchmarks.published import ROWS, SOURCES, predict, share_of, speed_of, table


def test_rows_have_sources_and_shard_data_alone():
    assert len(ROWS) >= 10 and {row.source for row in ROWS} == SOURCES.keys()
    assert all(row.run.stage == 3 and row.speed > 0 and row.ranks > 0 for row in ROWS)
    assert ROWS[0].shape.parameters == 6_658_859_008, "as the source counts MPT 7B"


def test_one_row_of_a_gpu_gives_its_share_and_the_others_are_within_15_per_cent_in_the_median():
    rows = [row for row in ROWS if row.gpu == "A100 80GB"]
    share = share_of(rows[0])
    assert 0.5 < share < 0.8 and abs(speed_of(rows[0], share) / rows[0].speed - 1) < 1e-3
    found = list(predict(rows))
    assert [one.calibrates for one in found] == [True] + [False] * (len(rows) - 1)
    assert median(abs(one.error) for one in found[1:]) < 0.15
    lines = table(found)
    assert sum(line.startswith("| M |") or line.startswith("| T |") for line in lines) == len(rows)
    assert any("+38.8%" in line for line in lines), "a bad row is shown like any other"


def test_memory_is_within_5_per_cent_in_the_median():
    errors = [one.memory_error for one in predict([row for row in ROWS if row.memory])]
    assert median(abs(error) for error in errors if error is not None) < 0.05 and None not in errors
