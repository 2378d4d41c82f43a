#!/bin/bash
# Write what Spark's servers are started with: NAME.conf for each NAME=MODE[,MODE...], into the folder that comes first.
# It reads the installation, so it runs where the ledger's credential is; the servers get the files alone.
set -euo pipefail
folder="$1"
shift
for server in "$@"; do
  modes="${server#*=}"
  backfill spark settings --mode "${modes%%,*}" --python "$PYSPARK_PYTHON" \
    | sed "s/^\(spark\.backfill\.server\.modes\)=.*/\1=$modes/" > "$folder/${server%%=*}.conf.new"
  mv "$folder/${server%%=*}.conf.new" "$folder/${server%%=*}.conf"
done
