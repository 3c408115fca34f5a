"""The agents that start, watch and end what belongs to a run on a host."""
