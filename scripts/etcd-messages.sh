#!/bin/sh
# Makes the messages of etcd's API from src/frazil/meta/etcd.proto. What it makes works with every protobuf since 5, so
# the check for one version, which warns at the next, is left out.
set -eu

cd -- "$(dirname -- "$0")/.."
sh scripts/setup.sh uv run --quiet --no-project --python 3.11 --with grpcio-tools==1.75.1 -- \
    python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src frazil/meta/etcd.proto
made=src/frazil/meta/etcd_pb2.py
{
    printf '"""Messages of etcd, made by `make etcd-messages`."""\n'
    sed -e '/^"""Generated/d' -e '/^_runtime_version/,/^)/d' -e '/runtime_version/d' -e '/coding: utf-8/d' $made
} > $made.new
mv $made.new $made
