# Shared by scripts/demo and scripts/test: finds Python, keeps .venv. Sourced, from the repository root.

say() { printf '%s\n' "$*" >&2; }

is_recent_python() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# Prints the first Python >= 3.11 that can make virtual environments. Running it is the test: a
# version manager's shim may be on the path for a version that is not switched on.
find_python() {
    local candidate without_venv=""
    for candidate in python3.13 python3.12 python3.11 python3; do
        is_recent_python "$candidate" || continue
        # Debian ships venv without ensurepip until the venv package is installed.
        if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return 0
        fi
        without_venv="${without_venv:-$candidate}"
    done
    explain_missing_python "$without_venv"
    return 1
}

explain_missing_python() {
    if [[ -z "$1" ]]; then
        say "Python 3.11 or newer is needed; looked for python3.13, python3.12, python3.11, python3."
        say "Install it, for example: apt-get install python3 python3-venv"
        return
    fi
    local version
    version="$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    say "$1 has no venv module. Install it, then run this again:"
    say "    apt-get install python${version}-venv"
}

# What an installation depends on. The path counts: an editable install points at it.
stamp_text() {
    pwd
    .venv/bin/python --version
    cat pyproject.toml constraints.txt
}

is_installed() {
    [[ -f ".venv/stamp-$1" && "$(stamp_text 2>&1)" == "$(<".venv/stamp-$1")" ]]
}

make_venv() {
    if is_recent_python .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1; then
        return 0
    fi
    local python
    python="$(find_python)" || exit 1
    say "Making .venv with $("$python" --version) ..."
    "$python" -m venv --clear .venv
}

# Writes the stamp last, so that an interrupted installation is done again.
installed() { stamp_text >".venv/stamp-$1"; }

pip_install() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$@"
}
