"""Pipeline parallelism: which rank plays which chunk of layers for which micro-batch, and when.

A chunk's forward and backward passes are programs that ``simulator.engine`` plays alone. Their
times are tasks here, one after the other on each rank, with messages between ranks.
"""
