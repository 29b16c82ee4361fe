#!/bin/sh
# Makes .venv, from nothing but Python 3.11 and this checkout. Run again it does nothing, quickly.
#
#   scripts/setup.sh           the environment of the product and its tests, in .venv
#   scripts/setup.sh docs      the environment of the documentation, in .uv/docs
#   scripts/setup.sh uv ...    run the uv that the above use
#
# uv is taken from PATH, or installed into .uv/ with pip, pinned by version and hash. Everything else comes
# from requirements*.lock, pinned the same way. PIP_*, UV_*, proxies and certificates of the environment are
# passed on. FRAZIL_APT=no keeps this script from installing system packages.
set -eu

cd -- "$(dirname -- "$0")/.."
root=$(pwd -P)
export HOME="${HOME:-$root/.uv/home}"

say() { printf '%s\n' "setup: $*" >&2; }
die() { say "$*"; exit 1; }

# --- system packages

. scripts/apt.sh

# Spark runs on Java 17 or 21: that of JAVA_HOME, else the first on PATH.
has_java() {
    java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    "$java" -version 2>&1 | grep -Eq 'version "(17|21)[."+-]'
}

system_packages() {
    has_java || { apt_install openjdk-17-jre-headless && has_java; } ||
        say "Java 17 or 21 is missing: rows are not moved to tables without it" \
            "(apt-get install openjdk-17-jre-headless, or set JAVA_HOME); the log itself needs none"
    command -v strace >/dev/null 2>&1 || apt_install strace ||
        say "strace is missing: tests that let the disk fail need it (apt-get install strace); Frazil itself does not"
}

# --- uv

find_python() {
    for candidate in python3 python3.11 python3.12 python3.13; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    die "Python 3.11 or newer is needed and was not found; on Debian: apt-get install python3"
}

find_uv() {
    if command -v uv >/dev/null 2>&1; then
        uv=$(command -v uv)
        return
    fi
    uv=$root/.uv/tool/bin/uv
    uv_from="$(sha256sum < requirements-uv.lock) $root"
    if [ -x "$uv" ] && [ "$(cat .uv/tool/made-from 2>/dev/null)" = "$uv_from" ]; then
        return
    fi
    python=$(find_python)
    say "uv is not on PATH: installing it into .uv/"
    rm -rf .uv/tool
    mkdir -p .uv
    if ! "$python" -m venv .uv/tool >/dev/null 2>&1; then
        rm -rf .uv/tool
        apt_install python3-venv ||
            die "cannot make a virtual environment: install python3-venv (apt-get install python3-venv) or uv, then run this again"
        "$python" -m venv .uv/tool || die "$python cannot make a virtual environment; install uv, then run this again"
    fi
    .uv/tool/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
        -r requirements-uv.lock || die "uv could not be installed; is there a network, or a proxy or PIP_INDEX_URL to set?"
    printf '%s' "$uv_from" > .uv/tool/made-from
}

# uv does not read pip's settings: hand over those that say where packages come from and whom to trust.
pass_on_pip_settings() {
    if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
        index=${PIP_INDEX_URL:-}
        if [ -z "$index" ] && [ -x .uv/tool/bin/python ]; then
            index=$(.uv/tool/bin/python -m pip config get global.index-url 2>/dev/null || true)
        fi
        [ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
    fi
    if [ -z "${SSL_CERT_FILE:-}${SSL_CERT_DIR:-}" ]; then
        for certificates in "${PIP_CERT:-}" /etc/ssl/certs/ca-certificates.crt; do
            if [ -f "$certificates" ]; then
                export SSL_CERT_FILE="$certificates"
                break
            fi
        done
    fi
}

# --- environments

# is_made FOLDER LOCK: whether it was made from this lock, pyproject.toml and script, in this place
is_made() {
    made_from="$(cat "$2" pyproject.toml scripts/setup.sh | sha256sum) $root"
    [ "$(cat "$1/made-from" 2>/dev/null)" = "$made_from" ] && "$1/bin/python" -c '' 2>/dev/null
}

# fill FOLDER LOCK: exactly what is locked. A folder made elsewhere, or only in part, is made anew. All is compiled
# here, once: uv leaves that to the first import, which leaves it to all where PYTHONDONTWRITEBYTECODE is set.
fill() {
    say "making $1 from $2"
    find_uv
    pass_on_pip_settings
    before=$(cat "$1/made-from" 2>/dev/null || true)
    rm -f "$1/made-from"
    if [ "${before#* }" = "${made_from#* }" ] && "$1/bin/python" -c '' 2>/dev/null; then :; else
        "$uv" venv --quiet --clear --python "$(find_python)" "$1"
    fi
    VIRTUAL_ENV="$root/$1" "$uv" pip sync --quiet --compile-bytecode --require-hashes "$2"
}

# Two set-ups at once would undo each other.
if [ "${1:-}" != uv ] && [ -z "${FRAZIL_SETUP_LOCKED:-}" ] && command -v flock >/dev/null 2>&1; then
    mkdir -p .uv
    FRAZIL_SETUP_LOCKED=1 exec flock .uv/lock sh scripts/setup.sh "$@"
fi

case "${1:-}" in
'')
    system_packages
    if ! is_made .venv requirements-dev.lock; then
        fill .venv requirements-dev.lock
        VIRTUAL_ENV="$root/.venv" "$uv" pip install --quiet --no-deps --no-build-isolation --editable .
        printf '%s' "$made_from" > .venv/made-from
    fi
    .venv/bin/python -m compileall -q src # for the same reason; what is compiled already is left alone
    ;;
docs)
    if ! is_made .uv/docs requirements-docs.lock; then
        fill .uv/docs requirements-docs.lock
        printf '%s' "$made_from" > .uv/docs/made-from
    fi
    ;;
uv)
    shift
    find_uv
    pass_on_pip_settings
    exec "$uv" "$@"
    ;;
*)
    die "unknown argument: $1"
    ;;
esac
