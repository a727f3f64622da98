# The kernel's side of an exchange of disks (see exchange_test.go in lvm/): runs
# in a guest with device-mapper. /dev/vdb and /dev/vdc hold the group vgx, the
# folder $1 the checksums that the other side read. It activates everything,
# compares, lets lvm2 and the kernel check the metadata, changes every volume,
# and leaves new checksums.
#   exchange.sh FOLDER [merge]
set -eu
dir=$1 what=${2:-}
export DM_DISABLE_UDEV=1 LVM_SUPPRESS_FD_WARNINGS=1
modprobe dm-mod; modprobe dm-snapshot; modprobe dm-thin-pool
mkdir -p /run/lvm /run/lock/lvm
fail() { echo "LVM: FAILED: $*"; exit 1; }

vgck vgx || fail vgck
for d in /dev/vdb /dev/vdc; do pvck $d || fail "pvck $d"; pvck --dump headers $d >/dev/null || fail "pvck --dump headers $d"; done
vgchange -ay -K vgx || fail "vgchange -ay"
lvs -a -o +chunksize,seg_pe_ranges vgx
dmsetup status
sha256sum -c "$dir/sums" || fail "checksums"
echo "LVM: the kernel reads the same"

lvs --noheadings -o lv_name,segtype vgx | while read -r lv type; do
	[ "$type" = thin-pool ] && continue
	dd if=/dev/urandom of=/dev/vgx/$lv bs=4k count=40 seek=$((RANDOM % 1000)) conv=notrunc,fsync status=none
	dd if=/dev/urandom of=/dev/vgx/$lv bs=512 count=3 seek=$((RANDOM % 9000)) conv=notrunc,fsync status=none
done
if [ "$what" = merge ]; then
	lvconvert -y --merge vgx/snap2 || fail merge
	lvcreate -y -s -n thin3 vgx/thin2 && lvchange -ay -K vgx/thin3 || fail "thin snapshot"
	blkdiscard -o 1048576 -l 2097152 /dev/vgx/thin1 || fail discard
	for i in 1 2 3 4 5 6 7 8 9 10; do lvs vgx/snap2 >/dev/null 2>&1 || break; sleep 1; lvpoll --polloperation merge vgx/lin 2>/dev/null || true; done
fi
: > "$dir/sums"
lvs --noheadings -o lv_name,segtype vgx | while read -r lv type; do
	[ "$type" = thin-pool ] && continue
	sha256sum /dev/vgx/$lv >> "$dir/sums"
done
vgchange -an vgx || fail "vgchange -an"
sync
echo "LVM: done"
