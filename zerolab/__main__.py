"""`python -m zerolab`, and `torchrun -m zerolab train ...`."""

import sys

from zerolab.apps.cli import main

sys.exit(main())
