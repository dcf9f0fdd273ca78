# Functions of the other scripts: find Python, make .venv, run a module. Source it in the repository.

# Replace the shell by a Python module. Take the Python of .venv, or python3 without .venv.
exec_module() {
    local python=python3
    [[ -x .venv/bin/python ]] && python=.venv/bin/python
    exec "$python" -m "$@"
}

say() { printf '%s\n' "$*" >&2; }

is_recent_python() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# Print the first Python >= 3.11 that can make virtual environments. This runs each candidate, because
# a version manager may put a name on the path for a version that is not active.
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

# Print what an installation depends on. An editable install points to the path of the repository.
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

# Call this last, so that the next run repeats an interrupted installation.
write_stamp() { stamp_text >".venv/stamp-$1"; }

pip_install() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$@"
}
