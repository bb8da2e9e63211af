#!/bin/sh
# One step of fresh_root.py, inside the root: in_root.sh install | use | upgrade | purge. Ends at what goes wrong first.
set -eu
cd /packages
packages=$(for each in ./*.deb; do dpkg-deb -f "$each" Package; done)
fail() {
  echo "$1" >&2
  exit 1
}

# The folders that the unit would make, for a marud that somebody else starts.
folders_are_marud_s() {
  [ "$(stat -c '%n %U %G %a' /run/marud)" = '/run/marud marud marud 755' ] || fail "/run/marud is not there, or not marud's"
  [ "$(stat -c '%n %U %G %a' /var/lib/marud)" = '/var/lib/marud marud marud 700' ] ||
    fail "/var/lib/marud is not there, or not marud's"
}

case $1 in
  install)
    dpkg -i ./*.deb >/dev/null
    getent passwd marud >/dev/null || fail "there is no user marud"
    folders_are_marud_s
    [ "$(readlink /etc/systemd/system/multi-user.target.wants/marud.service)" = /lib/systemd/system/marud.service ] ||
      fail "marud.service is not enabled"
    # Pages of the manual are left out of some roots, so systemd is not asked for them.
    said=$(systemd-analyze verify --man=no /lib/systemd/system/marud.service /lib/systemd/system/marud.socket \
      /lib/systemd/system/marud-provision.service 2>&1 |
      grep marud || true)
    [ -z "$said" ] || fail "$said"
    [ "$(dpkg-query -W -f '${Conffiles}' marud | awk '{ print $1 }')" = /etc/marud/marud.toml ] ||
      fail "/etc/marud/marud.toml is no file of configuration"
    marud --config /etc/marud/marud.toml --check-config >/dev/null
    # What systemd would run at boot: the configuration as it comes names no device.
    /lib/systemd/system-generators/marud-generator /tmp/generated /tmp/generated /tmp/generated || fail "the generator fails"
    [ ! -e /tmp/generated ] || fail "the generator writes something for a configuration without a device"
    ;;

  use)
    # shellcheck disable=SC2046  # several words are meant
    gcc -std=c99 -Wall -Wextra -Wpedantic -Werror -o /tmp/use_c use_c.c $(pkg-config --cflags --libs maru)
    # shellcheck disable=SC2046
    g++ -std=c++20 -Wall -Wextra -Wpedantic -Werror -o /tmp/use_cpp use_cpp.cc $(pkg-config --cflags --libs maru)
    g++ -std=c++20 -Wall -Wextra -fPIC -shared -o /tmp/deep_first.so /usr/share/doc/libmaru-dev/examples/policy/deep_first.cc

    # As the unit would start it: its user, its folders, its configuration. /run is empty, as after a boot.
    systemd-tmpfiles --create marud.conf || fail "the folders cannot be made"
    folders_are_marud_s
    # Nobody is left who could hand the memory of the last time back. Waiting for that takes most of a client's patience.
    rm -f /var/lib/marud/*.state
    setpriv --reuid marud --regid marud --clear-groups --no-new-privs --bounding-set=-all \
      marud --config /etc/marud/marud.toml 2>/tmp/log &
    marud=$!
    until marudctl status >/dev/null 2>&1; do  # the socket is there a moment before marud listens on it
      kill -0 $marud 2>/dev/null || { cat /tmp/log >&2; fail "marud did not start"; }
      sleep 0.05
    done
    /tmp/use_c
    /tmp/use_cpp
    [ "$(python3 ten_lines.py)" = "b'hello world' [True, False]" ] || fail "the example in Python says something else"
    python3 -c 'import maru; assert maru.__file__.startswith("/usr/lib/python3/dist-packages/maru/"), maru.__file__'
    marudctl status >/dev/null
    marudctl check >/dev/null
    kill $marud
    wait $marud || { cat /tmp/log >&2; fail "marud ended with status $?"; }
    [ "$(stat -c %U /var/lib/marud/lock)" = marud ] || fail "marud left no state in /var/lib/marud"
    ;;

  upgrade)
    # An administrator's change stays, and so does marud's state.
    echo '# changed here' >>/etc/marud/marud.toml
    dpkg -i next/*.deb >/dev/null
    for package in $packages; do
      case $(dpkg-query -W -f '${Status} ${Version}' $package) in
        'install ok installed '*+next) ;;
        *) fail "$package was not upgraded" ;;
      esac
    done
    grep -q '^# changed here$' /etc/marud/marud.toml || fail "the upgrade took a changed configuration away"
    [ -e /var/lib/marud/lock ] || fail "the upgrade took marud's state away"
    ;;

  purge)
    echo secret >/etc/marud/http-token  # what an administrator made, and the package knows nothing of
    # shellcheck disable=SC2086
    dpkg --remove $packages >/dev/null
    [ -e /etc/marud/marud.toml ] || fail "removing, which is not purging, took the configuration away"
    [ -e /var/lib/marud/lock ] || fail "removing, which is not purging, took marud's state away"
    dpkg --purge marud maru-eventd maru-tierd >/dev/null 2>&1  # the libraries left nothing to purge
    [ "$(ls -A /etc/marud)" = http-token ] || fail "after a purge /etc/marud has $(ls -A /etc/marud), expected the token alone"
    rm -r /etc/marud
    for package in $packages; do
      case $(dpkg-query -W -f '${Status}' $package 2>/dev/null || true) in
        '' | *' not-installed') ;;
        *) fail "dpkg still knows $package" ;;
      esac
    done
    ;;

  *) fail "usage: in_root.sh install|use|upgrade|purge" ;;
esac
