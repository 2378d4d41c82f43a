"""Write a quarter of readings of three meters as a CSV file; Python alone is enough.

python3 docs/tutorial/make_readings.py readings.csv
"""

import csv
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

begin = datetime(2024, 1, 1, tzinfo=UTC)
rows = [
    {"meter_id": f"m{meter}", "read_at": begin + timedelta(hours=6 * number), "watt_hours": 100 * meter + number % 7}
    for meter in (1, 2, 3)
    for number in range(91 * 4)
]
with Path(sys.argv[1]).open("w", newline="", encoding="utf-8") as file:
    writer = csv.DictWriter(file, ["meter_id", "read_at", "watt_hours"])
    writer.writeheader()
    writer.writerows(rows)
print(f"{len(rows):,} readings written")
