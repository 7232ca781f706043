"""Methods that decide which device runs which node: one file each, or one folder for a family."""
