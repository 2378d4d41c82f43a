"""Append a quarter of readings of three meters to `bronze.meter_readings`, as any program could that writes Iceberg.

python docs/tutorial/load_readings.py
"""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyiceberg.catalog import load_catalog

command = [sys.executable, "-m", "backfill_assets.cli", "config", "--json"]
settings = json.loads(subprocess.check_output(command))
table = load_catalog(settings["catalog_name"], **settings["catalog"]).load_table("bronze.meter_readings")
begin = datetime(2024, 1, 1, tzinfo=UTC)
rows = [
    {"meter_id": f"m{meter}", "read_at": begin + timedelta(hours=6 * number), "watt_hours": 100 * meter + number % 7}
    for meter in (1, 2, 3)
    for number in range(91 * 4)
]
table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
print(f"{len(rows):,} readings appended")
