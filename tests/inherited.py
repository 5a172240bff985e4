"""What the suite is given by who starts it and gives to all that it starts: imported before torch, which reads some."""

import os
import signal

# What OpenMP's threads cost while they wait for work: by its own choice they spin, and take the cores from other tests'
# processes, ten times what the work itself takes. Read when torch is loaded, here and in all that is started from here.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A shell without job control starts what it puts into the background (`make test &` in a script) with Ctrl-C ignored,
# and so would be all that a test starts in order to interrupt it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
