"""zerolab's stages beside what others offer for the same: one command, one run, the same model and batches."""
