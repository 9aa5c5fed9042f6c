#!/usr/bin/env bash
# Imports real packages and compares them with what GNU tar extracts. Not part of ./test: it fetches them, by name and version, with
# npm, where that reaches a registry.
# HOLDFAST=/abs/holdfast scripts/packages.sh [COUNT]    as root. Exit 0: all as GNU tar has them; 1: not; 2: nothing could be fetched.
set -u
: "${HOLDFAST:?the absolute path of holdfast}"
npm_packages="lodash@4.17.21 express@4.18.2 react@18.2.0 typescript@5.0.4 @types/node@18.16.0 chalk@4.1.2 axios@1.4.0
moment@2.29.4 webpack@5.82.0 rxjs@7.8.1 vue@3.3.4 eslint@8.41.0 prettier@2.8.8 jest@29.5.0 uuid@9.0.0 commander@10.0.1 debug@4.3.4
semver@7.5.1 glob@10.2.6 rollup@3.23.0"
work=$(mktemp -d -p "${TMPDIR:-/var/tmp}"); trap 'rm -rf "$work"' EXIT; cd "$work" || exit 2
mkdir fetched
if command -v npm >/dev/null; then
    for package in $npm_packages; do (cd fetched && timeout 60 npm pack --silent "$package" >/dev/null 2>&1) || echo "not fetched: $package"; done
fi
count=0; failed=0
for archive in fetched/*.tgz fetched/*.tar.gz; do
    [ -f "$archive" ] || continue
    [ "$count" -lt "${1:-20}" ] || break
    count=$((count + 1)); rm -rf pool.hf tar out plain.tar; mkdir tar
    gzip -dc "$archive" >plain.tar
    tar --numeric-owner -C tar -xpf plain.tar
    "$HOLDFAST" create pool.hf --size 1G >/dev/null && "$HOLDFAST" copy-in plain.tar pool.hf --verify >told 2>&1 &&
        "$HOLDFAST" copy-out pool.hf out >>told 2>&1
    code=$?
    # GNU tar sets the time of a directory when it leaves it, and a package that comes back to it changes that: not compared.
    list() { (cd "$1" && find . -mindepth 1 \( -type d -printf '%P d %m %U %G\n' \) -o -printf '%P %y %m %U %G %T@ %l\n' | sort); }
    if [ "$code" = 0 ] && diff -r --no-dereference tar out >differs && diff <(list tar) <(list out) >differs; then
        echo "ok    $(basename "$archive")"
    else
        echo "WRONG $(basename "$archive"): exit $code; $(head -n 3 differs told 2>/dev/null | tr '\n' ' ')"; failed=1
    fi
done
[ "$count" -gt 0 ] || { echo "no package could be fetched: npm is missing, or does not reach its registry"; exit 2; }
echo "$count packages"; exit $failed
