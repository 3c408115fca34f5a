"""The options that targets declare: data, from which all front ends make theirs."""
