"""Settings that every test shares."""

import os

import torch
from hypothesis import settings

# Small tensors: a second thread only waits, and for long where other tests use the cores.
torch.set_num_threads(1)

# The same examples every run, so that green stays green; `explore` looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
