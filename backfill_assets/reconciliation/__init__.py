"""The mode that computes and compares and changes nothing: published rows held against source and record, and drift over time."""
