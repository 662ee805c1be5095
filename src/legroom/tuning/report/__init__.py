"""The results of a study as plain data, computed once for every report and logger."""
