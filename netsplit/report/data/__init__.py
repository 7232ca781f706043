"""What a report shows, read from the runs that hold it."""
