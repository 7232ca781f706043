"""One rule for each class of operators: along which dimensions it can be cut, and what that makes of it."""
