#!/usr/bin/env bash
# Builds into $1, for the kernel $2 of a guest, Linux' user space block driver from Debian's
# source of the same version, unchanged (root; half a minute): Debian's kernel leaves
# CONFIG_BLK_DEV_UBLK out.
set -euo pipefail
out=$1 release=$2
abi=${release%-amd64} series=$(echo "$release" | cut -d. -f1,2)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cd "$work"
printf '%s\n' 'DPkg::Lock::Timeout "600";' 'Acquire::Retries "5";' > apt.conf; export APT_CONFIG=$work/apt.conf
fetch() { apt-get -qq download -o APT::Sandbox::User=root "linux-source-$series" "linux-headers-$release" "linux-headers-$abi-common" "linux-kbuild-$series"; }
fetch || { apt-get update -qq; fetch; }

headers=$work/headers; mkdir "$headers" src
for deb in linux-headers-*.deb linux-kbuild-*.deb; do dpkg-deb -x "$deb" "$headers"; done
tree=$headers/usr/src/linux-headers-$release
# The tree refers to its other halves by absolute path; aim those at the copies.
sed -i "s#/usr/src/#$headers/usr/src/#; s#/usr/lib/#$headers/usr/lib/#" "$tree/Makefile"
for link in "$tree"/{scripts,tools} "$headers/usr/src/linux-headers-$abi-common"/{scripts,tools}; do
  [ -L "$link" ] && ln -sfn "$headers/usr/lib/linux-kbuild-$series/${link##*/}" "$link"
done
dpkg-deb --fsys-tarfile linux-source-*.deb | tar -xO "./usr/src/linux-source-$series.tar.xz" |
  tar -xJ -C src --strip-components=3 "linux-source-$series/drivers/block/ublk_drv.c"
echo 'obj-m := ublk_drv.o' > src/Makefile
make -s -C "$tree" M="$work/src" modules >make.log 2>&1 || { tail -20 make.log >&2; exit 1; }
mkdir "$work/modules"
strip --strip-debug src/ublk_drv.ko; cp src/ublk_drv.ko "$work/modules/"
mkdir -p "$(dirname "$out")"; rm -rf "$out"; mv "$work/modules" "$out"
