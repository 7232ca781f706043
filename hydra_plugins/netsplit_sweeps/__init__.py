"""NetSplit's sweepers and launcher; Hydra finds them because they are in `hydra_plugins` (docs/sweeps.md)."""
