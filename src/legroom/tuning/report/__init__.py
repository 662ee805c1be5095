"""The figures of a study, computed once for every report and logger."""
