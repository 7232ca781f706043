"""What a device sends and receives while it executes a program."""
