"""One step at two numbers of samples."""
