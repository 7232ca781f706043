"""One GPU put through all that NetSplit does on GPUs; run it as `python -m benchmarks.gpu`."""
