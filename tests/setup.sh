#!/usr/bin/env bash
# Installs what the whole-system tests need and this machine lacks: Debian packages (foreign
# clients, a browser), a Python venv in .venv and npm packages in tests/node/node_modules.
# With everything in place it changes nothing, needs no root and no network.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

# command that must exist -> Debian package that brings it
debian_packages_missing() {
    command -v mosquitto_pub >/dev/null || echo mosquitto-clients
    command -v amqp-consume >/dev/null || echo amqp-tools
    command -v chromium >/dev/null || echo chromium
    command -v node >/dev/null || echo nodejs
    command -v npm >/dev/null || echo npm
    command -v python3 >/dev/null || echo python3
    command -v strace >/dev/null || echo strace
    # ensurepip is what a Debian python3 without python3-venv lacks.
    python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
}

install_debian() {
    local missing
    missing=$(debian_packages_missing | sort -u | tr '\n' ' ')
    [ -n "${missing// /}" ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        say "these Debian packages are missing: $missing"
        say "install them as root: apt-get install --no-install-recommends $missing"
        exit 1
    fi
    say "installing Debian packages: $missing"
    apt-get update -qq
    # shellcheck disable=SC2086 # a list of package names
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >&2
}

# A stamp holds the digest of the list that was installed, so an unchanged list costs one hash.
stamp_is_current() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }

install_python() {
    local digest
    digest=$(sha256sum tests/py/requirements.txt | cut -d' ' -f1)
    stamp_is_current .venv/.installed "$digest" && return 0
    say "installing the Python clients into .venv"
    [ -x .venv/bin/python ] || python3 -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/py/requirements.txt >&2
    printf '%s' "$digest" >.venv/.installed
}

install_node() {
    local digest
    digest=$(cat tests/node/package.json tests/node/package-lock.json | sha256sum | cut -d' ' -f1)
    stamp_is_current tests/node/node_modules/.installed "$digest" && return 0
    say "installing the Node clients into tests/node/node_modules"
    # The browser comes from Debian; the driver must not fetch its own.
    (cd tests/node && PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm ci --no-audit --no-fund --silent >&2)
    printf '%s' "$digest" >tests/node/node_modules/.installed
}

install_debian
install_python
install_node
