#!/bin/bash
# Start a server of Spark Connect from a file of `backfill spark settings`: its settings, and the variables that it names
# for a server that is its own executor.
set -euo pipefail
file="$1"
shift
eval "$(sed -n 's/^# export/export/p' "$file")"
exec start-connect-server.sh --properties-file "$file" --conf spark.connect.grpc.binding.address=0.0.0.0 "$@"
