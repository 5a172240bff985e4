"""Right answers to the exercises of lesson 06, in other styles than the model's."""

from zoo.right import mixed_again, mixed_edges, mixed_mended, mixed_more, mixed_numbers, mixed_ranks

RIGHT = [*mixed_numbers.RIGHT, *mixed_ranks.RIGHT, *mixed_mended.RIGHT, *mixed_again.RIGHT, *mixed_more.RIGHT]
RIGHT += mixed_edges.RIGHT
