#!/usr/bin/env bash
# Installs Debian packages that pip cannot install:
#     scripts/debian.sh venv    what $PYTHON needs to make .venv
#     scripts/debian.sh gl      what .venv needs to render without a display
#     scripts/debian.sh browser what the slow tests need to look at a report
# It needs root, or sudo without a password. The exit code is 0 if the packages work. Otherwise it is 1, and a message
# names the packages to install and the reason.
set -uo pipefail
python=${PYTHON:-python3}
os_release=${OS_RELEASE:-/etc/os-release}

has_venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }

# Renders an image: the EGL library alone does not show whether there is a driver that works.
has_gl() {
    local backend
    [ "$(uname)" = Linux ] || return 0
    for backend in ${MUJOCO_GL:-egl osmesa}; do
        MUJOCO_GL=$backend .venv/bin/python 2>/dev/null -c '
import mujoco
mujoco.Renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), height=8, width=8).render()' && return 0
    done
    return 1
}

has_browser() { command -v chromium >/dev/null; }

# Prints an entry of os-release, such as NAME or ID.
released() { sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}$/\1/p" "$os_release" 2>/dev/null; }

is_debian() { [[ " $(released ID) $(released ID_LIKE) " == *" debian "* ]]; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

# Installs the packages; prints the reason if they could not be installed.
install() {
    if ! is_debian; then
        echo "this is $(released NAME | grep . || echo 'no Debian'): install what matches them with its package manager"
    elif ! command -v apt-get >/dev/null; then
        echo "there is no apt-get here: install them in the way that this system is made"
    elif ! as_root true 2>/dev/null; then
        echo "this needs root: run \`apt-get update && apt-get install $*\` as root"
    else
        echo "installing Debian's $*" >&2
        as_root apt-get update -qq >&2 &&
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
            echo "apt-get could not install them: see what it says above"
    fi
}

case "${1:-}" in
venv)
    # If the interpreter is missing, use its name: python3-venv also installs python3.
    named=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])' 2>/dev/null) || named=$(basename "$python")
    packages=("$named-venv")
    purpose="Making .venv with $python"
    otherwise=""
    ;;
gl)
    packages=(libegl1 libopengl0 libgl1-mesa-dri)
    purpose="Rendering without a display"
    otherwise="; everything that does not render works without"
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
why_not=$(install "${packages[@]}")
[ -z "$why_not" ] && "has_$1" && exit 0
echo "$purpose needs Debian's ${packages[*]}, and ${why_not:-it fails with them too}$otherwise." >&2
exit 1
