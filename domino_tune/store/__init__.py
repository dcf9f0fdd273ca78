"""Store: profiles, plans, models, evidence and file formats on disk.

May import requests, base and the simulator.
"""
