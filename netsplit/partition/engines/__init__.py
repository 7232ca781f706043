"""What searches and solves, whichever method asks: mixed-integer models, annealing, compiled loops."""
