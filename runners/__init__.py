"""The commands: `python -m runners.<name>`.

A command is up to two modules. `compare.py` reads the config and refuses what is wrong with it: it starts,
shows `--help` and says most mistakes within a second, without torch, numba or MLflow
(`tests/runners/test_imports.py`). Only keys and values of a model, dataset, loss or optimizer take longer, as
those need torch. `_compared.py` does the work: `job` imports it when the rest is accepted.
"""

import sys

from netsplit.interrupts import end_while_loading

if sys.argv[:1] == ["-m"]:  # as long as Python looks for the module that it will run as a command
    end_while_loading()
