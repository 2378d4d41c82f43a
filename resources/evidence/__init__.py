"""The evidence store: bundles, records, the chain, and heads kept elsewhere. Nothing here is rewritten or deleted."""
