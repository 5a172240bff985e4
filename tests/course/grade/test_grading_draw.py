"""The numbers that cases are made of, and when cases are drawn."""

import json
import os
from random import Random
from types import SimpleNamespace

import pytest
import torch

from zerolab.course.grade import worker
from zerolab.course.judge.draw import signed, whole_numbers


def test_numbers_are_all_those_of_their_range_and_no_others() -> None:
    assert set(whole_numbers(Random(0), 500, most=5).tolist()) == {1, 2, 3, 4, 5}
    assert set(signed(Random(0), 500, most=3).tolist()) == {-3, -2, -1, 1, 2, 3}


@pytest.mark.parametrize("draw", [whole_numbers, signed])
def test_a_seed_draws_the_same_again_and_each_draw_is_another(draw) -> None:
    rng, again = Random(7), Random(7)
    first, second = draw(rng, 40), draw(rng, 40)
    assert torch.equal(first, draw(again, 40)) and torch.equal(second, draw(again, 40))
    assert not torch.equal(first, second)
    assert draw(rng, 3, torch.bfloat16).dtype == torch.bfloat16


def test_no_case_is_drawn_for_an_answer_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cell may have left the process without memory, say."""
    exercise = SimpleNamespace(name="f", drawn=lambda seed: pytest.fail("cases were drawn"))
    monkeypatch.setattr(worker, "exercises_of", lambda lesson: {"f": exercise})
    for name in ("settle", "fence", "limit", "fork_server", "watch_process"):
        monkeypatch.setattr(worker, name, lambda *args, **kwargs: None)
    # This process has changed what a worker looks for.
    for name in ("fingerprint", "tampered"):
        monkeypatch.setattr(worker, name, lambda *args: {})
    monkeypatch.setattr(os, "_exit", lambda status: None)
    said: list[dict] = []
    reports = SimpleNamespace(fileno=lambda: 0, send_bytes=lambda line: said.append(json.loads(line)))
    step = {"name": "f", "source": "1 / 0", "answer": True, "graded": True}
    worker.main({"lesson": "any", "memory_mb": 1, "steps": [step], "seed": 0}, reports, "", {})
    assert [seen["trouble"]["kind"] for seen in said[1]["seen"]] == ["ZeroDivisionError"]
