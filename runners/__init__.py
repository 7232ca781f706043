"""The commands: `python -m runners.<name>`.

A command is up to two modules. `compare.py` reads the config and refuses what is wrong with it: it starts,
shows `--help` and says most mistakes within a second, without torch, numba or MLflow
(`tests/runners/test_imports.py`). Only keys and values of a model, dataset, loss or optimizer take longer, as
those need torch. `_compared.py` does the work: `job` imports it when the rest is accepted.
"""

import sys

from netsplit.interrupts import end_while_loading

# While Python looks for the module to run, argv[0] is "-m".
if sys.argv[:1] == ["-m"] and f"-m{__name__}." in f"-m{sys.orig_argv[-len(sys.argv)]}":
    end_while_loading()
