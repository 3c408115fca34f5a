"""How Hypothesis looks for counterexamples: as long as it takes, for a busy machine is no error."""

from hypothesis import HealthCheck, settings

settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")
