"""Flat buffers: their geometry (`layout`, integers only) and the views that put parameters on them (`views`)."""

from zerolab.flat.layout import (
    ALIGN,
    Layout,
    Piece,
    Segment,
    Slot,
    chunk_bounds,
    chunk_sizes,
    lay_out,
    split_by_size,
)

__all__ = [
    "ALIGN",
    "Layout",
    "Piece",
    "Segment",
    "Slot",
    "chunk_bounds",
    "chunk_sizes",
    "lay_out",
    "split_by_size",
]
