"""`auto`: a portfolio of methods, annealing from the best of them, and a bound beside it."""
