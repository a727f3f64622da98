#!/usr/bin/env bash
# Builds a guest into $1 from Debian's packages (root; about a minute, 2 GiB):
#   vmlinux   the distribution's kernel, uncompressed: QEMU enters it directly
#   initrd    busybox and the modules that reach the root file system
#   root.img  ext4 with the packages of the other arguments, files in this folder;
#             guests see it read-only under a throwaway overlay
# A package behind a "-" in such a file comes without what it depends on.
# Debian's kernel leaves siw out (CONFIG_RDMA_SIW is not set), so the module is
# built from Debian's source of the same version. Its settings are constants
# there; the build makes them module parameters with unchanged defaults.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$1 work=$1/work; shift
packages=$(cd "$here" && grep -hv '^[#-]' "$@") alone=$(cd "$here" && sed -n 's/^- *//p' "$@")
export DEBIAN_FRONTEND=noninteractive
mkdir -p "$work/debs/partial" "$work/kernel"
say() { printf '  guest: %s\n' "$*"; }

# Another package manager may hold the lock, and a mirror may be away for a moment.
export APT_CONFIG=$work/apt.conf
printf '%s\n' 'DPkg::Lock::Timeout "600";' 'Acquire::Retries "5";' > "$APT_CONFIG"

say "tools of the host"
for pause in 5 20 60 0; do apt-get update -qq && break || sleep "$pause"; done
apt-get install -y -qq --no-install-recommends \
  qemu-system-x86 e2fsprogs cpio xz-utils gcc make bc libelf-dev gcc-12 >/dev/null

say "packages of the guest"
# An empty package database makes apt resolve every dependency afresh.
: > "$work/no-packages"
apt-get -qq -y --download-only install \
  -o Dir::State::status="$work/no-packages" -o Dir::Cache::archives="$work/debs" \
  -o Dir::State::extended_states="$work/extended" -o APT::Install-Recommends=false \
  -o APT::Sandbox::User=root -o Debug::NoLocking=true \
  $packages >/dev/null
[ -z "$alone" ] || (cd "$work/debs" && apt-get -qq download -o APT::Sandbox::User=root $alone)
image=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
release=${image#linux-image-} abi=${image#linux-image-}; abi=${abi%-amd64}
series=$(echo "$release" | cut -d. -f1,2)
(cd "$work/kernel" && apt-get -qq download -o APT::Sandbox::User=root "$image" \
  "linux-source-$series" "linux-headers-$release" "linux-headers-$abi-common" "linux-kbuild-$series")

say "siw for $release"
headers=$work/headers src=$work/src
rm -rf "$headers" "$src"; mkdir -p "$headers" "$src"
for deb in "$work"/kernel/linux-headers-*.deb "$work"/kernel/linux-kbuild-*.deb; do dpkg-deb -x "$deb" "$headers"; done
tree=$headers/usr/src/linux-headers-$release
# The tree refers to its other halves by absolute path; aim those at the copies.
sed -i "s#/usr/src/#$headers/usr/src/#; s#/usr/lib/#$headers/usr/lib/#" "$tree/Makefile"
for link in "$tree"/{scripts,tools} "$headers/usr/src/linux-headers-$abi-common"/{scripts,tools}; do
  [ -L "$link" ] && ln -sfn "$headers/usr/lib/linux-kbuild-$series/${link##*/}" "$link"
done
dpkg-deb --fsys-tarfile "$work"/kernel/linux-source-*.deb | tar -xO "./usr/src/linux-source-$series.tar.xz" |
  tar -xJ -C "$src" --strip-components=4 "linux-source-$series/drivers/infiniband/sw/siw"
cd "$src/siw"
for setting in zcopy_tx try_gso mpa_crc_required mpa_crc_strict siw_tcp_nagle peer_to_peer; do
  sed -i "s/^extern const bool $setting;/extern bool $setting;/" siw.h
  sed -i "s/^const bool \($setting\)\( = true\)\?;/bool \1\2;\nmodule_param(\1, bool, 0644);/" siw_main.c
done
sed -i 's/^u_char mpa_version = .*/&\nmodule_param(mpa_version, byte, 0644);/' siw_main.c
# siw 6.1 puts the second part of an FPDU's trailer where it has put the first, so
# that a CRC in two segments is a bad CRC. QEMU's user-mode network cuts the stream
# anew; whole_trailer repairs that, and is off only where the defect is to be shown.
sed -i 's/^u_char mpa_version = .*/&\nbool whole_trailer = true;\nmodule_param(whole_trailer, bool, 0644);/' siw_main.c
sed -i 's/^extern u_char mpa_version;/&\nextern bool whole_trailer;/' siw.h
sed -i 's/skb_copy_bits(skb, srx->skb_offset, tbuf, avail);/skb_copy_bits(skb, srx->skb_offset,\n\t\ttbuf + (whole_trailer ? srx->pad + MPA_CRC_SIZE - srx->fpdu_part_rem : 0), avail);/' siw_qp_rx.c
grep -q whole_trailer siw.h && grep -q whole_trailer siw_qp_rx.c || { echo "siw's trailer is not where it was; see siw_qp_rx.c" >&2; exit 1; }
# siw 6.1 lets a program's thread and its own one send from one queue pair at a time (see peers.md). A mutex
# repairs that; with two_senders there is none, and a program's thread stops, for as many milliseconds, where the other one comes in.
sed -i 's/^u_char mpa_version = .*/&\nint two_senders;\nmodule_param(two_senders, int, 0644);/' siw_main.c
sed -i 's/^extern u_char mpa_version;/&\nextern int two_senders;/; s/^\tstruct ib_qp base_qp;/&\n\tstruct mutex send_mutex;/' siw.h
sed -i 's/^\tinit_rwsem(&qp->state_lock);/&\n\tmutex_init(\&qp->send_mutex);/; s/^\t\tqp->tx_ctx.in_syscall = [01];/\t\tif (two_senders)\n\t&/' siw_verbs.c
sed -i 's/^int siw_qp_sq_process(/static int siw_qp_sq_process_alone(/; s/^\tif (rv < (int)hdr_len) {/\tif (two_senders \&\& c_tx->in_syscall \&\& rv < (int)(hdr_len + data_len + trl_len))\n\t\tmsleep(two_senders);\n&/; s/^#include <linux\/errno.h>/#include <linux\/delay.h>\n&/' siw_qp_tx.c
cat >> siw_qp_tx.c <<'END'

int siw_qp_sq_process(struct siw_qp *qp)
{
	int rv = 0;

	if (two_senders)
		return siw_qp_sq_process_alone(qp);
	mutex_lock(&qp->send_mutex);
	qp->tx_ctx.in_syscall = !(current->flags & PF_KTHREAD);
	if (tx_wqe(qp)->wr_status != SIW_WR_IDLE) /* the other thread has not sent it */
		rv = siw_qp_sq_process_alone(qp);
	mutex_unlock(&qp->send_mutex);
	return rv;
}
END
[ "$(cat siw.h siw_verbs.c siw_qp_tx.c | grep -cE 'extern int two_senders|struct mutex send_mutex|mutex_init\(&qp->send_mutex|if \(two_senders\)|static int siw_qp_sq_process_alone|msleep')" = 8 ] || { echo "siw's sending is not where it was; see siw_qp_tx.c and siw_post_send" >&2; exit 1; }
[ "$(grep -c '^module_param' siw_main.c)" = 9 ] || { echo "siw's settings are not where they were; see siw_main.c" >&2; exit 1; }
sed -i 's/obj-\$(CONFIG_RDMA_SIW)/obj-m/' Makefile
make -s -C "$tree" M="$PWD" -j"$(nproc)" modules >"$work/siw.log" 2>&1 || { tail -20 "$work/siw.log" >&2; exit 1; }

say "root file system"
root=$work/root
rm -rf "$root"; mkdir -p "$root"/usr/{bin,sbin,lib,lib32,lib64,libx32} "$root"/{proc,sys,dev,run,tmp,root,host,job,mnt,etc,var/log}
for d in bin sbin lib lib32 lib64 libx32; do ln -s "usr/$d" "$root/$d"; done
for deb in "$work"/debs/*.deb; do
  case $deb in *linux-image*|*initramfs*|*klibc*|*usrmerge*) continue;; esac
  dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C "$root" -f -
done
rm -rf "$root"/usr/share/{doc,man,locale,info,lintian} "$root"/usr/lib/x86_64-linux-gnu/gconv
# What the packages' own scripts would have done, as far as it is needed.
cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
sed -i 's#^root:[^:]*:#root::#' "$root/etc/passwd"
printf '127.0.0.1 localhost\n' > "$root/etc/hosts"
echo guest > "$root/etc/hostname"; : > "$root/etc/fstab"; ln -sf /proc/mounts "$root/etc/mtab"
printf '%032d\n' 7 > "$root/etc/machine-id"
ln -sf gawk "$root/usr/bin/awk"
ldconfig -r "$root"

say "modules and kernel"
dpkg-deb -x "$work/kernel/${image}"_*.deb "$work/image"
modules=$root/usr/lib/modules/$release
mkdir -p "$root/usr/lib/modules"; rm -rf "$modules"; cp -r "$work/image/lib/modules/$release" "$modules"
rm -rf "$modules"/kernel/sound "$modules"/kernel/drivers/{gpu,media,staging,iio,usb,hwmon,input,hid,isdn,mtd,bluetooth,leds,mmc,platform,power,regulator,rtc,thermal,video,i2c,gpio,mfd,edac,firewire,can,nfc,tty} \
  "$modules"/kernel/drivers/net/{wireless,ethernet,can,usb,wwan,phy}
install -D "$src/siw/siw.ko" "$modules/extra/siw.ko"; strip --strip-debug "$modules/extra/siw.ko"
chroot "$root" /usr/sbin/depmod "$release"
offset=$(grep -abo $'\xfd7zXZ' "$work/image/boot/vmlinuz-$release" | head -1 | cut -d: -f1) ||
  offset=$(LC_ALL=C grep -aboP '\xfd7zXZ' "$work/image/boot/vmlinuz-$release" | head -1 | cut -d: -f1)
# xz reports the bytes behind the stream; what it has written by then is the kernel.
tail -c +$((offset + 1)) "$work/image/boot/vmlinuz-$release" | xz -dc --single-stream > "$out/vmlinux" 2>/dev/null || true
[ "$(stat -c %s "$out/vmlinux")" -gt 10000000 ] || { echo "no kernel found inside vmlinuz-$release" >&2; exit 1; }

say "initrd and image"
install -m 755 "$here/init" "$root/init"
early=$work/early; rm -rf "$early"; mkdir -p "$early"/{bin,mods,proc,sys,dev,root}
cp "$root/bin/busybox" "$early/bin/busybox"; ln -s busybox "$early/bin/sh"; install -m 755 "$here/early" "$early/init"
n=100
for m in virtio_pci virtio_blk virtio_net ext4 9pnet_virtio 9p; do
  chroot "$root" /usr/sbin/modprobe -S "$release" --show-depends "$m"
done | sed -n 's#^insmod \([^ ]*\).*#\1#p' | awk '!seen[$0]++' | while read -r f; do
  n=$((n + 1)); cp "$root$f" "$early/mods/$n-${f##*/}"
done
strip --strip-debug "$early"/mods/*.ko
(cd "$early" && find . | sort | cpio -o -H newc --quiet) > "$out/initrd"
chown -R 0:0 "$root"
mib=$(( $(du -sm --apparent-size "$root" | cut -f1) * 13 / 10 + 150 ))
rm -f "$out/root.img"; mke2fs -q -t ext4 -O ^has_journal,^metadata_csum -m 0 -L guestroot -d "$root" "$out/root.img" "${mib}M"
for package in $packages $alone; do
  deb=$(ls "$work"/debs/"${package}"_*.deb); deb=${deb##*/}; version=${deb#*_}
  echo "$package ${version%_*}" | sed 's/%3a/:/'
done > "$out/versions"
echo "$release" > "$out/kernel-release"
rm -rf "$work"
say "done: $(du -sh "$out" | cut -f1) in $out"
