#!/bin/sh
# Run a deployment under spark-submit, with the driver on this machine.
#
#     export DATABASE_URL=postgresql://penstock@db/shop
#     export PENSTOCK_MASTER=spark://master:7077
#     deploy/spark-submit.sh /srv/shop/penstock.toml --executor-memory 2g
#
# Words behind the file go to spark-submit. What `penstock run` takes as flags is given as PENSTOCK_* variables.
# docs/how-to/cluster.md says what the nodes need.
set -eu

config=${1:?"name the deployment's file: $0 penstock.toml [flags of spark-submit]"}
shift
: "${PENSTOCK_MASTER:?"set it to the master, such as spark://host:7077: spark-submit and penstock run both read it here"}"
export PENSTOCK_MASTER
here=$(cd "$(dirname "$0")" && pwd)

exec "${SPARK_HOME:+$SPARK_HOME/bin/}spark-submit" \
  --name penstock \
  --master "$PENSTOCK_MASTER" \
  --deploy-mode client \
  --conf spark.python.unix.domain.socket.enabled=true \
  --conf spark.sql.session.timeZone=UTC \
  --conf spark.sql.streaming.numRecentProgressUpdates=10 \
  --conf spark.ui.showConsoleProgress=false \
  "$@" \
  "$here/submit.py" run --config "$config"
