# Sourced by the other scripts, which have `say`: apt_install PACKAGE... where there is an apt-get and the right to use
# it, and false elsewhere. FRAZIL_APT=no keeps it from installing anything.

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
    # The package lists of a fresh machine may be missing or old; so they are fetched once, and only then.
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends "$@" >&2 2>/dev/null ||
        { $as_root apt-get update >&2 &&
            DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends "$@" >&2; }
}
