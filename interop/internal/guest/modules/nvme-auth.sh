#!/usr/bin/env bash
# Builds into $1, for the kernel $2 of a guest, Linux' NVMe host and target over TCP and
# RDMA with DH-HMAC-CHAP, from Debian's source of the same version (root; a minute): Debian's kernel
# leaves CONFIG_NVME_AUTH, CONFIG_NVME_TARGET_AUTH and CONFIG_CRYPTO_DH_RFC7919_GROUPS out.
# Two things differ from the stock source. The groups of RFC 7919 are a module of their own,
# ffdhe, since the kernel has Diffie-Hellman itself built in. And nvme-core's parameters
# dhchap_hash and dhchap_group make the host offer one hash and one group; without them it
# offers what it always does.
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
  tar -xJ -C src --strip-components=1 "linux-source-$series/drivers/nvme" "linux-source-$series/crypto/dh.c" "linux-source-$series/crypto/dh_helper.c"

nvme=$work/src/drivers/nvme
sed -i '/^static int nvme_auth_set_dhchap_negotiate_data/i\
static int dhchap_hash, dhchap_group = -1;\
module_param(dhchap_hash, int, 0644);\
module_param(dhchap_group, int, 0644);\
' "$nvme/host/auth.c"
sed -i '/idlist\[35\] = NVME_AUTH_DHGROUP_8192;/a\
	if (dhchap_hash) {\
		data->auth_protocol[0].dhchap.halen = 1;\
		data->auth_protocol[0].dhchap.idlist[0] = dhchap_hash;\
	}\
	if (dhchap_group >= 0) {\
		data->auth_protocol[0].dhchap.dhlen = 1;\
		data->auth_protocol[0].dhchap.idlist[30] = dhchap_group;\
	}' "$nvme/host/auth.c"
[ "$(grep -c 'dhchap_hash\|dhchap_group' "$nvme/host/auth.c")" = 7 ] || { echo "what the host offers is not where it was; see host/auth.c" >&2; exit 1; }
mkdir "$nvme/ffdhe"; sed '/^static int __init dh_init/,$d; s/^static struct kpp_alg dh = /static struct kpp_alg dh __maybe_unused = /' src/crypto/dh.c > "$nvme/ffdhe/groups.c"
sed '/^EXPORT_SYMBOL/d' src/crypto/dh_helper.c > "$nvme/ffdhe/helper.c" # of which the kernel exports a part
cat >> "$nvme/ffdhe/groups.c" <<'C'
static int __init ffdhe_init(void)
{
	return crypto_register_templates(crypto_ffdhe_templates, ARRAY_SIZE(crypto_ffdhe_templates));
}
static void __exit ffdhe_exit(void)
{
	crypto_unregister_templates(crypto_ffdhe_templates, ARRAY_SIZE(crypto_ffdhe_templates));
}
module_init(ffdhe_init);
module_exit(ffdhe_exit);
MODULE_LICENSE("GPL");
C
printf '%s\n' 'obj-m := ffdhe.o' 'ffdhe-y := groups.o helper.o' > "$nvme/ffdhe/Makefile"; echo 'obj-m += ffdhe/' >> "$nvme/Makefile"
on="CONFIG_NVME_AUTH CONFIG_NVME_TARGET_AUTH CONFIG_CRYPTO_DH_RFC7919_GROUPS"
off="CONFIG_BLK_DEV_NVME CONFIG_NVME_FC CONFIG_NVME_TARGET_FC"
make -s -C "$tree" M="$nvme" -j"$(nproc)" CONFIG_NVME_COMMON=m $(printf '%s=y ' $on) $(printf '%s=n ' $off) \
  KCFLAGS="$(printf -- '-D%s=1 ' $on)" modules >make.log 2>&1 || { tail -20 make.log >&2; exit 1; }
mkdir "$work/modules"
for module in ffdhe/ffdhe common/nvme-common host/nvme-core host/nvme-fabrics host/nvme-tcp host/nvme-rdma target/nvmet target/nvmet-tcp target/nvmet-rdma; do
  strip --strip-debug "$nvme/$module.ko"; cp "$nvme/$module.ko" "$work/modules/"
done
mkdir -p "$(dirname "$out")"; rm -rf "$out"; mv "$work/modules" "$out"
