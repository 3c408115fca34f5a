"""The process on the lead host that owns the status of a run."""
