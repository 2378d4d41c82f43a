"""The commands of `backfill`, by whom they serve; `backfill_assets.cli` puts them together."""
