"""Worker processes: placements compiled and measured in processes of their own."""
