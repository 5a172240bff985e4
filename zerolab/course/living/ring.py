"""The ring's scene: films of each collective on 2 to 8 ranks, as the library's own ring made them."""

from __future__ import annotations

from typing import Any

from zerolab.course.viz.film import COLLECTIVES, film
from zerolab.course.viz.looks import PALE
from zerolab.course.viz.moment import ring_text
from zerolab.course.viz.ring import MOST_RANKS


def record() -> dict[str, Any]:
    """Each film by "COLLECTIVE RANKS", moment by moment: how many summands each rank holds of each chunk, the messages
    of the step that comes, and the sentence, the words for who does not see it and the table of the still picture."""
    return {
        "collectives": list(COLLECTIVES),
        "colours": list(PALE),
        "films": {
            f"{collective} {ranks}": [moment(collective, ranks, step) for step in range(len(film(collective, ranks)))]
            for collective in COLLECTIVES
            for ranks in range(2, MOST_RANKS + 1)
        },
    }


def moment(collective: str, ranks: int, step: int) -> dict[str, Any]:
    shown = film(collective, ranks)[step]
    said, alt, table = ring_text(collective, film(collective, ranks), step)
    return {
        "held": [[len(hop.ranks) if hop else 0 for hop in row] for row in shown.held],
        "messages": [
            {"src": sent.src, "dst": sent.dst, "chunk": sent.hop.chunk, "summands": len(sent.hop.ranks)}
            for sent in shown.messages
        ],
        "verdict": said,
        "alt": alt,
        "table": table,
    }
