"""How rows get into input tables: files held against a table's model, quarantine, loads and taking them back.

Put here what happens before a source has a snapshot that a plan can pin. What a loaded row means is the product's.
"""
