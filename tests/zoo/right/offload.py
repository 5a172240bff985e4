"""Right answers to the exercises of lesson 07, in other styles than the model's."""

from zoo.right import offload_again, offload_bytes, offload_edges, offload_more, offload_walk

RIGHT = [*offload_bytes.RIGHT, *offload_walk.RIGHT, *offload_again.RIGHT, *offload_more.RIGHT]
RIGHT += offload_edges.RIGHT
