"""The products that this code location serves. Adding a domain is one line here."""

from backfill_assets.products.enforcement import PRODUCT as ENFORCEMENT

PRODUCTS = (ENFORCEMENT,)
