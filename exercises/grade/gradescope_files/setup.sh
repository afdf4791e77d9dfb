#!/usr/bin/env bash
# Runs once, when Gradescope builds the image: a Python of at least 3.11 with what the grader needs.
set -euo pipefail

root="${AUTOGRADER_ROOT:-/autograder}"
source="$root/source"

has_python() {
    command -v "$1" > /dev/null && "$1" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))'
}

python=""
for candidate in python3.13 python3.12 python3.11 python3; do
    if has_python "$candidate"; then
        python="$candidate"
        break
    fi
done
if [ -z "$python" ]; then
    apt-get update
    # Ubuntu 24.04 has 3.12 under this name; 22.04 has 3.10 there, and 3.11 under its own name.
    DEBIAN_FRONTEND=noninteractive apt-get install -y python3 python3-venv
    python=python3
    if ! has_python "$python"; then
        DEBIAN_FRONTEND=noninteractive apt-get install -y python3.11 python3.11-venv
        python=python3.11
    fi
fi

"$python" -m venv "$root/venv"
"$root/venv/bin/python" -m pip install --no-cache-dir -r "$source/requirements.txt"

# The library moves to where submitted code may read it; rubric, secret and private code may not be.
rm -rf "$root/library"
cp -r "$source/library" "$root/library"
packages="$("$root/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
echo "$root/library" > "$packages/minigpt_library.pth"
chmod -R go-rwx "$source"
"$root/venv/bin/python" -I -m exercises.grade --help > /dev/null
