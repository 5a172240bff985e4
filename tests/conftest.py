"""Settings that every test shares."""

import os

from hypothesis import settings

# The same examples every run, so that green stays green; `explore` looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
