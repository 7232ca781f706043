"""The samples of a batch within a graph: where they lie, and cutting along them."""
