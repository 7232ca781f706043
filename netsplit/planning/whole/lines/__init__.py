"""The graph as a line, and the line cut into stages for groups of devices."""
