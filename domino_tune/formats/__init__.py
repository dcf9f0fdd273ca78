"""Other people's file formats, and ours for single models."""
