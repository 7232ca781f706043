"""What goes wrong while a batch is computed, in words."""
