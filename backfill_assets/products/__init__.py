"""Meaning, one folder a domain: schemas, transforms, rules, reference data. No plumbing."""
