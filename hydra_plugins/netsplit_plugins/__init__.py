"""Options of installed packages; Hydra finds this because it is in `hydra_plugins` (docs/extending.md)."""
