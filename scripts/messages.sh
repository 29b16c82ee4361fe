#!/bin/sh
# Makes the messages of etcd's API, of Arrow Flight and of Danube's admin service from their .proto files. What it makes
# works with every protobuf since 5, so the check for one version, which warns at the next, is left out.
set -eu

cd -- "$(dirname -- "$0")/.."
for name in meta/etcd serve/flight serve/danube_admin; do
    sh scripts/setup.sh uv run --quiet --no-project --python 3.11 --with grpcio-tools==1.75.1 -- \
        python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src "frazil/$name.proto"
    made=src/frazil/${name}_pb2.py
    {
        printf '"""Messages of %s.proto, made by `make messages`."""\n' "${name#*/}"
        sed -e '/^"""Generated/d' -e '/^_runtime_version/,/^)/d' -e '/runtime_version/d' -e '/coding: utf-8/d' "$made"
    } > "$made.new"
    mv "$made.new" "$made"
done
