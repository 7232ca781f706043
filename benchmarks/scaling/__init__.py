"""Planning time and memory against the number of nodes and devices."""
