"""The controller's side of a runtime on workers: programs that they have, what they hold, words of losses."""
