"""Programs that record and rebuild the tables in `legroom.observe.cuda_rules`."""
