# Common to ./demo and ./test: installs what is missing, on Debian and its kin, and says so.

say() { printf '\n== %s\n' "$*"; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# install_missing COMMAND-OR-FILE=PACKAGE...: installs the packages whose command or file is not
# there.
install_missing() {
    local pair probe packages=()
    for pair in "$@"; do
        probe=${pair%%=*}
        case $probe in
            /*) [ -e "$probe" ] || packages+=("${pair#*=}") ;;
            *) command -v "$probe" >/dev/null || packages+=("${pair#*=}") ;;
        esac
    done
    [ ${#packages[@]} -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        echo "Install these with your package manager, then run this again: ${packages[*]}" >&2
        return 1
    fi
    say "installing ${packages[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
        "${packages[@]}"
}

# Installs Rust where cargo is missing; rust-toolchain.toml then chooses the version.
install_rust() {
    if ! command -v cargo >/dev/null && [ -r "$HOME/.cargo/env" ]; then
        . "$HOME/.cargo/env"
    fi
    command -v cargo >/dev/null && return 0
    install_missing curl=curl /etc/ssl/certs/ca-certificates.crt=ca-certificates
    say "installing Rust with rustup"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal
    . "$HOME/.cargo/env"
}
