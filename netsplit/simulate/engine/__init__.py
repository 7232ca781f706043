"""What a program takes, in compiled loops: the simulator's, and those of searches."""
