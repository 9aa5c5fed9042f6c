#!/usr/bin/env bash
# Tests the dashboard in Debian's chromium: serves a new pool, and does with a browser what people
# do. Screenshots are in target/dashboard. Exits 77 where it cannot run here, and says why.
#
#   scripts/dashboard.sh [PROGRAM]       PROGRAM: target/debug/holdfast, built if it is not given
set -euo pipefail
cd "$(dirname "$0")/.."
PLAYWRIGHT_VERSION=1.65.1
WORK=target/dashboard

skip() {
    echo "SKIPPED: the dashboard is not tested: $*" >&2
    exit 77
}
for needed in chromium=chromium node=nodejs npm=npm nfs-cp=libnfs-utils; do
    command -v "${needed%%=*}" >/dev/null || skip "there is no ${needed%%=*}: apt-get install ${needed#*=}"
done
mkdir -p "$WORK"
if [ ! -d "$WORK/node_modules/playwright-core" ]; then
    timeout 120 npm install --fetch-retries 1 --silent --no-audit --no-fund --prefix "$WORK" \
        "playwright-core@$PLAYWRIGHT_VERSION" ||
        skip "playwright-core cannot be had by npm"
fi
program=${1:-}
if [ -z "$program" ]; then
    cargo build -q -p cli
    program=target/debug/holdfast
fi
place=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; wait; rm -rf "$place"' EXIT
export HOLDFAST_RUN_DIR=$place/run
"$program" create --group "mirror:$place/pool.hf,$place/second.hf" --size 1G \
    --name '<b>pool' >/dev/null
# What rots in this one is lost: it has one copy.
"$program" create "$place/rots.hf" --size 1G --name rots >/dev/null
"$program" --json serve "$place/pool.hf" "$place/rots.hf" --nfs 127.0.0.1:0 --listen 127.0.0.1:0 \
    --state "$place/state" --log-file "$place/log" >"$place/said" &
server=$!
for _ in $(seq 300); do
    [ ! -s "$place/said" ] || break
    kill -0 "$server" || { cat "$place/log"; exit 1; }
    sleep 0.1
done
"$program" fileset create "$place/pool.hf:home" >/dev/null
"$program" fileset create "$place/pool.hf:data" >/dev/null
"$program" export add "$place/pool.hf:data" /data --rw --squash none --insecure >/dev/null
"$program" fileset create "$place/pool.hf:home/ann" block=64K >/dev/null
"$program" snapshot create "$place/pool.hf:home@monday" >/dev/null
"$program" export add "$place/pool.hf:home" /home --to 10.0.0.0/8,fd00::/8 --rw >/dev/null
"$program" schedule set "$place/pool.hf:home" hourly=24,daily=7 >/dev/null
"$program" export add "$place/rots.hf" /rots --rw --squash none --insecure >/dev/null
NODE_PATH=$WORK/node_modules node scripts/dashboard.cjs "$place/said" "$place/state/token" "$WORK" \
    "$(command -v chromium)" "$place" "$server" "$program"
kill "$server"
wait "$server"
server=
"$program" check "$place/pool.hf"
