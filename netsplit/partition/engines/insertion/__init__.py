"""List scheduling with insertion: what `heft` and `dpos` share."""
