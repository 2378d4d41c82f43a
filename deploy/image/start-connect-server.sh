#!/bin/bash
# A server of Spark Connect that stays in the foreground: what Kubeflow's operator calls by this name, and compose too.
set -euo pipefail
exec "$SPARK_HOME/bin/spark-submit" --class org.apache.spark.sql.connect.service.SparkConnectServer \
  --conf "spark.driver.extraClassPath=/opt/spark-s3/*" --conf spark.ui.enabled=false "$@"
