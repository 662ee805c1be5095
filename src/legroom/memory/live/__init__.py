"""The live state of running programs: a small file per process, which `legroom monitor` reads."""
