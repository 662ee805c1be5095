"""The `schema` key of every JSON document that Legroom prints: `legroom.NAME/VERSION`.

A version increases when a key changes its meaning or is removed. `lint --format json` prints a list and has no schema
key.
"""

RUN = "legroom.run/1"
"""The schema of `legroom run` and `legroom report`."""
DIFF = "legroom.diff/1"
ESTIMATE = "legroom.estimate/1"
LAUNCH = "legroom.launch/1"
LAUNCH_PLAN = "legroom.launch-plan/1"
TUNE = "legroom.tune/1"
EXPLAIN = "legroom.explain/1"
CODE = "legroom.code/1"
"""The schema of `legroom explain LG101`."""
DOCTOR = "legroom.doctor/1"
MONITOR = "legroom.monitor/1"
