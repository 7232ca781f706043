"""FastT's OS-DPOS: the search, and what it chooses among."""
