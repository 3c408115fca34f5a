"""Amounts as people read them, and as Kubernetes writes them."""

from shanty.launch.doctor.facts import amount
from shanty.launch.kubernetes.shortfall import quantity

__all__ = ["amount", "quantity"]
