"""Two hosts on one machine, joined by a link of a given rate."""
