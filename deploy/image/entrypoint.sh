#!/bin/bash
# What the image starts. Spark on Kubernetes starts an image by the words `driver` and `executor`, and says the rest in
# variables; everything else is a command.
set -euo pipefail

# options of Java that Spark numbers: SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...
java_options=()
for ((number = 0; ; number++)); do
  name="SPARK_JAVA_OPT_$number"
  [[ -n "${!name+x}" ]] || break
  java_options+=("${!name}")
done

case "${1:-}" in
  driver)
    shift
    exec "$SPARK_HOME/bin/spark-submit" \
      --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
    ;;
  executor)
    classes="${SPARK_CONF_DIR:-/opt/spark/conf}:$SPARK_HOME/jars/*:${SPARK_EXTRA_CLASSPATH:-}:/opt/spark-s3/*"
    exec "$JAVA_HOME/bin/java" "${java_options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "$classes" org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  *)
    exec "$@"
    ;;
esac
