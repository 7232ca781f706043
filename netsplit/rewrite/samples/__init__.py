"""The samples of a batch within a graph: where they lie, cutting along them, what goes over all of them."""
