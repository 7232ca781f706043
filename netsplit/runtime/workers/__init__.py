"""Worker processes: started, met, watched, stopped."""
