#!/usr/bin/env bash
# Builds iscsi-test-cu from the newest libiscsi that Debian has (its development
# suite, sid) as DIR/iscsi-test-cu, with its version in DIR/version. apt fetches
# and verifies the upstream tarball of the source package through lists of its
# own, so that the host's package sources stay as they are; Debian's patches,
# which are about packaging, are not applied.
set -euo pipefail
dir=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
say() { echo "  libiscsi: $*"; }

say "fetching the list of source packages"
mkdir -p "$tmp/lists/partial" "$tmp/src"
echo "deb-src http://deb.debian.org/debian sid main" >"$tmp/sources.list"
apt=(apt-get -qq -o "Dir::Etc::sourcelist=$tmp/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$tmp/lists" -o APT::Sandbox::User=root)
"${apt[@]}" update
# A mirror may lack Debian's part of the package for a while; the tarball, of
# which apt has checked the sum before it gives it its name, is all we need.
(cd "$tmp/src" && "${apt[@]}" --download-only source libiscsi) 2>"$tmp/apt" || true
tarball=$(ls "$tmp"/src/libiscsi_*.orig.tar.gz 2>/dev/null) || { cat "$tmp/apt"; exit 1; }
version=${tarball##*/libiscsi_}
version=${version%.orig.tar.gz}

missing=()
for p in libcunit1-dev libgcrypt20-dev autoconf automake libtool pkg-config gcc make; do
  dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
  say "installing ${missing[*]}"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

say "building $version"
tar -xzf "$tarball" -C "$tmp/src"
cd "$tmp/src/libiscsi-$version"
{
  ./autogen.sh
  ./configure --disable-manpages --disable-werror --disable-tests --disable-examples --without-rdma --prefix="$tmp/prefix" CFLAGS="-O1 -w"
  make -j"$(nproc)"
  make install
} >"$tmp/log" 2>&1 || { tail -n 30 "$tmp/log"; exit 1; }
install -m 755 "$tmp/prefix/bin/iscsi-test-cu" "$dir/iscsi-test-cu"
echo "$version" >"$dir/version"
