"""Models that read a sequence and write one: recurrent ones, and the first transformer."""
