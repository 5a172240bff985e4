"""Of tests that processes share, the longest begin first; none is lost."""

from types import SimpleNamespace
from typing import Any

import pytest
from conftest import FIRST, longest_first


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("ordinary", [0, 1, 2, 40, 41])
def test_each_part_begins_with_some_of_the_longest(parts: int, ordinary: int) -> None:
    names = [
        *(f"a{place}" for place in range(ordinary)),
        *(f"tests/{name}x{place}" for place in (1, 2) for name in FIRST),
    ]
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    ordered = [item.nodeid for item in longest_first(items, parts)]
    assert sorted(ordered) == sorted(names)
    for place, name in enumerate(FIRST):
        first, second = (at for at, one in enumerate(ordered) if name in one)
        assert second == first + 1, "a file's tests stay together"
        if ordinary >= 40 and place < parts:
            assert first == len(names) * place // parts
