"""Adapters to other tools and platforms, each on `client` alone."""
