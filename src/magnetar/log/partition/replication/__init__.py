"""Who leads a partition and who follows: the deciding machines, their stored state, and the loops
that run them between brokers."""
