"""Programs that run Legroom on public training programs that were not written for it."""
