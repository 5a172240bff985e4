"""What somebody with GPUs runs to see whether this library is right on them: `make gpu-test`, five minutes.

    training.py   rank functions: a small model, trained by our engine, by DDP, by FSDP2
    streams.py    a GPU whose streams are late, and how often the host waits for it
    checks.py     what is held: each check trains, compares, and says what it found beside the limit
    report.py     the text that is printed, written to a file, and pasted into an issue
    __main__.py   the command

All but what only a GPU has runs on the CPU, too, with gloo in NCCL's place: so these files are tested without one.
"""
