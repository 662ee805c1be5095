"""Files and folders that survive a crash."""
