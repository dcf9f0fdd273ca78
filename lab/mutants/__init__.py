"""Faults put into the code: do its tests notice them?"""
