#!/bin/sh
# Makes the messages of etcd's API, of Arrow Flight and of Danube's protocols from their .proto files. What it makes
# works with every protobuf since 5, so the check for one version, which warns at the next, is left out.
set -eu

cd -- "$(dirname -- "$0")/.."

# make FOLDER NAME: from FOLDER/NAME.proto; the name in the descriptor is relative to FOLDER
make_messages() {
    sh scripts/setup.sh uv run --quiet --no-project --python 3.11 --with grpcio-tools==1.75.1 -- \
        python -m grpc_tools.protoc "-I$1" "--python_out=$1" "--pyi_out=$1" "$2.proto"
    made=$1/${2}_pb2.py
    {
        printf '"""Messages of %s.proto, made by `make messages`."""\n' "${2##*/}"
        sed -e '/^"""Generated/d' -e '/^_runtime_version/,/^)/d' -e '/runtime_version/d' -e '/coding: utf-8/d' "$made"
    } > "$made.new"
    mv "$made.new" "$made"
}

make_messages src frazil/meta/etcd
make_messages src frazil/doors/flight/flight
make_messages src frazil/doors/danube_admin/danube_admin
make_messages src/frazil/doors/danube/proto DanubeApi
make_messages src/frazil/doors/danube/proto DanubeAuth
make_messages src/frazil/doors/danube/proto SchemaRegistry
