#!/usr/bin/env bash
# Debian packages that pip cannot bring:
#     scripts/debian.sh venv    what $PYTHON needs to make .venv
#     scripts/debian.sh gl      what .venv needs to render without a display
#     scripts/debian.sh browser what the slow tests need to look at a report
# Exits 0 when they are there, after installing them where it may (root, or sudo without a password); otherwise one
# sentence says what to install, and the exit code is 1.
set -uo pipefail
python=${PYTHON:-python3}

has_venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }

# Renders for real: EGL is only a dispatcher, so its library alone says nothing about the driver behind it.
has_gl() {
    [ "$(uname)" = Linux ] || return 0
    MUJOCO_GL=${MUJOCO_GL:-egl} .venv/bin/python 2>/dev/null -c '
import mujoco
mujoco.Renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), height=8, width=8).render()'
}

has_browser() { command -v chromium >/dev/null; }

install() {
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || return 1
        as_root=(sudo -n)
    fi
    command -v apt-get >/dev/null || return 1
    echo "installing Debian's $*"
    "${as_root[@]}" apt-get update -qq &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

case "${1:-}" in
venv)
    # Without the interpreter its name has to do: python3-venv brings python3 along.
    named=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])' 2>/dev/null) || named=$(basename "$python")
    packages=("$named-venv")
    purpose="Making .venv with $python"
    ;;
gl)
    packages=(libegl1 libopengl0 libgl1-mesa-dri)
    purpose="Rendering without a display"
    ;;
browser)
    packages=(chromium)
    purpose="Looking at a report in a browser"
    ;;
*)
    echo "usage: $0 venv | gl | browser" >&2
    exit 2
    ;;
esac

"has_$1" && exit 0
install "${packages[@]}" && "has_$1" && exit 0
echo "$purpose needs Debian's ${packages[*]}: run \`apt-get update && apt-get install ${packages[*]}\` as root." >&2
exit 1
