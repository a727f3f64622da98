# Helpers of the guest's scripts. The host's loopback is 10.0.2.2 here.
HOST=10.0.2.2 SELF=10.0.2.15
die() { echo "FAILED: $*"; dmesg | tail -15; exit 1; }

# siw_up [PARAMETER=VALUE...]: software iWARP on eth0.
siw_up() {
  rdma link show 2>/dev/null | grep -q siw_eth0 && return
  modprobe siw "$@" && modprobe -a rdma_ucm ib_uverbs && rdma link add siw_eth0 type siw netdev eth0
}
# siw_set PARAMETER VALUE: while loaded.
siw_set() { echo "$2" > "/sys/module/siw/parameters/$1"; }

# rxe_up [MTU]: software RoCE on eth1, whose other end is a tap of the host's. From then
# on HOST and SELF are the two ends of that link.
rxe_up() {
  HOST=10.9.0.1 SELF=10.9.0.2 HOST6=fd00:9::1 SELF6=fd00:9::2 RDMA=rxe
  [ -z "${1-}" ] || ip link set eth1 mtu $1 || return
  rdma link show 2>/dev/null | grep -q rxe_eth1 && return
  ip addr add $SELF/24 dev eth1 && echo 0 > /proc/sys/net/ipv6/conf/eth1/disable_ipv6 && ip -6 addr add $SELF6/64 dev eth1 nodad && ip link set eth1 up &&
    modprobe -a rdma_rxe rdma_ucm ib_uverbs && rdma link add rxe_eth1 type rxe netdev eth1
}
# lossy PERCENT: packets of RoCE's link are lost in both directions; what comes goes
# through another interface, because loss is made where packets leave. The host's address is
# known before: rping looks for it for 2 s, twice. lost says how many were lost, lossless ends it.
lossy() {
  lossless; known $HOST && modprobe -a sch_netem ifb sch_ingress act_mirred cls_matchall || return
  ip link show ifb0 >/dev/null 2>&1 || ip link add ifb0 type ifb || return
  ip link set ifb0 up && tc qdisc add dev eth1 root netem loss $1% limit 5000 && tc qdisc add dev ifb0 root netem loss $1% limit 5000 &&
    tc qdisc add dev eth1 ingress && tc filter add dev eth1 ingress matchall action mirred egress redirect dev ifb0
}
# known ADDRESS: eth1's neighbour with that address needs no ARP from now on.
known() {
  local n mac
  for n in $(seq 50); do
    echo > /dev/udp/$1/9; mac=$(ip neigh show $1 dev eth1 | grep -oE '([0-9a-f]{2}:){5}[0-9a-f]{2}') && break; sleep 0.1
  done 2>/dev/null
  [ -n "$mac" ] && ip neigh replace $1 dev eth1 lladdr $mac nud permanent
}
lost() { echo $(for d in eth1 ifb0; do tc -s qdisc show dev $d root | grep -o 'dropped [0-9]*' | head -1; done); }
lossless() { tc qdisc del dev eth1 root; tc qdisc del dev eth1 ingress; tc qdisc del dev ifb0 root; } 2>/dev/null
# initiator [IQN]: starts iscsid once.
initiator() {
  pgrep -x iscsid >/dev/null && return
  echo "InitiatorName=${1:-iqn.2026-11.softiser:guest}" > /etc/iscsi/initiatorname.iscsi
  modprobe -a sd_mod sg iscsi_tcp ib_iser || return
  iscsid -f >/tmp/iscsid.log 2>&1 &
  for _ in $(seq 50); do iscsiadm -m iface >/dev/null 2>&1 && return; sleep 0.1; done
  return 1
}
# discover PORT IFACE: what iscsiadm lists. Over iSER the answers are late. One that comes
# before iscsiadm has seen the kernel take the request, which happens when a processor of a
# guest stands still, is taken in while it waits for that (__kipc_call in open-iscsi's
# netlink.c), and then waited for at the socket, in vain, for 30 s (discovery_sendtargets). That
# is read in its source; what was seen is the 30 s and a segmentation fault of iscsiadm behind
# them, which it does not explain.
discover() {
  local dev rc
  [ $2 = iser ] && { dev=eth0; [ "${RDMA-}" = rxe ] && dev=eth1; modprobe sch_netem && tc qdisc add dev $dev root netem delay 100ms || return; }
  iscsiadm -m discovery -t st -p $HOST:$1 -I $2; rc=$?
  [ -z "${dev-}" ] || tc qdisc del dev $dev root || return
  return $rc
}
# attach iser|tcp PORT IQN [NAME=VALUE...]: logs in and prints the disk of LUN 0.
attach() {
  local iface=default mode=$1 port=$2 iqn=$3 kv; shift 3
  [ $mode = iser ] && { ${RDMA:-siw}_up || return; iface=iser; }
  initiator || return
  iscsiadm -m node -o new -T "$iqn" -p $HOST:"$port" -I $iface >/dev/null || return
  for kv in "$@"; do iscsiadm -m node -T "$iqn" -p $HOST:"$port" -o update -n "${kv%%=*}" -v "${kv#*=}" || return; done
  iscsiadm -m node -T "$iqn" -p $HOST:"$port" -l >/tmp/login.log 2>&1 || { cat /tmp/login.log; tail -5 /tmp/iscsid.log; return 1; }
  disk "$iqn"
}
# disk IQN [LUN]: the block device of a session, once it is there.
disk() {
  local i s d
  for i in $(seq 200); do
    for s in /sys/class/iscsi_session/session*; do
      [ "$(cat "$s/targetname" 2>/dev/null)" = "$1" ] || continue
      for d in "$s"/device/target*/*:"${2:-0}"/block/sd*; do [ -b "/dev/${d##*/}" ] && { echo "/dev/${d##*/}"; return; }; done
    done
    sleep 0.1
  done
  return 1
}
# detach IQN
detach() { iscsiadm -m node -T "$1" -u >/dev/null && iscsiadm -m node -T "$1" -o delete >/dev/null; }

# sizes DEV: direct writes and reads of many sizes at odd places, compared.
sizes() {
  python3 - "$1" <<'X'
import os, sys, mmap
fd = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
for size in (512, 1024, 4096, 4608, 8192, 12288, 61440, 65536, 131072, 524288, 1048576, 4194304):
    for off in (0, 512, 7 * 512, 1 << 20, (3 << 20) + 1536):
        want = bytes((off // 512 + i * 7 + i // 251) % 251 for i in range(4096)) * (size // 4096 + 1)
        a = mmap.mmap(-1, max(size, 4096)); a[:size] = want[:size]
        b = mmap.mmap(-1, max(size, 4096))
        assert os.pwrite(fd, memoryview(a)[:size], off) == size
        assert os.preadv(fd, [memoryview(b)[:size]], off) == size
        assert b[:size] == want[:size], f"{size} bytes at {off} differ"
print("sizes: all the same")
X
}
# verify DEV [MIB] [JOBS] [DEPTH]: fio random read and write with verification.
verify() {
  fio --name=v --filename="$1" --rw=randrw --bsrange=512-256k --size="${2:-16}"m --numjobs="${3:-1}" --offset_increment="${2:-16}"m \
    --direct=1 --ioengine=libaio --iodepth="${4:-16}" --verify=crc32c --verify_fatal=1 --do_verify=1 >/tmp/fio.log 2>&1 || { cat /tmp/fio.log; return 1; }
  grep -E 'READ:|WRITE:' /tmp/fio.log
}
# listening PORT: waits until somebody in the guest listens on a TCP port, siw included,
# without a visit: a server of one visitor takes one that was refused for it now and then.
listening() {
  local n port; port=$(printf ':%04X ' "$1")
  for n in $(seq 300); do awk -v p="$port" 'index($0, p) && $4 == "0A" { found = 1 } END { exit !found }' /proc/net/tcp && return; sleep 0.1; done
  return 1
}
# limited SECONDS COMMAND...: timeout(1). An rping whose test has passed now and then does
# not exit with 0, and is told by what it says: in rdma-core 44's rping.c, main destroys the
# event channel (line 1396) while cm_thread, which is neither ended nor joined, may be between
# two events (671 to 677, the last one that of the disconnect, 223). Its next rdma_get_cm_event
# then says "Bad file descriptor" and exits (673, 674). rping of rdma-core 59 ends the thread
# first (f3ae6534a). Failures of the test have a line of their own, "wait for … state",
# "data mismatch!" or "cma event …".
limited() {
  local said rc
  [ "$2" = rping ] || { timeout "$@"; return; }
  said=$(mktemp); timeout "$@" > "$said" 2>&1; rc=$?; cat "$said"
  [ $rc = 0 ] && return
  grep -qE '^(client|server) DISCONNECT EVENT\.\.\.$' "$said" && grep -qxF 'rdma_get_cm_event: Bad file descriptor' "$said" &&
    ! grep -qE '^wait for .* state|data mismatch!|^cma event ' "$said" || return $rc
}
# quiet_kernel: fails when the kernel warned since the last call. One warning is printed
# only: that a work queue with WQ_MEM_RECLAIM waits for one without. It is about how the
# kernel's own drivers have made their queues, and whether it comes depends on which of
# their workers lets go of a connection last.
quiet_kernel() {
  local log bad; log=$(dmesg -c)
  grep -F 'is flushing !WQ_MEM_RECLAIM' <<<"$log" || true
  bad=$(awk '
    /cut here/ { cut = ""; inside = 1; own = 0 }
    inside { cut = cut $0 "\n"; if (/is flushing !WQ_MEM_RECLAIM/) own = 1 }
    !inside { print }
    inside && /end trace/ { inside = 0; if (!own) printf "%s", cut }
    END { if (inside) printf "%s", cut }' <<<"$log" | grep -E 'WARN|BUG|Oops|RIP:|Call Trace|refcount|hung_task|blocked for more' || true)
  [ -z "$bad" ] || { echo "$bad"; return 1; }
}

# LIO, by configfs. Without a serial number LIO reports no VPD page at all.
LIO=/sys/kernel/config/target
lio_ram() { modprobe -a target_core_mod iscsi_target_mod; lio_path=$LIO/core/rd_mcp_$((lio_n++))/$1; mkdir -p "$lio_path" && echo "rd_pages=$(($2 * 256))" > "$lio_path/control" && echo 1 > "$lio_path/enable" && echo "$1" > "$lio_path/wwn/vpd_unit_serial"; }
lio_file() { modprobe -a target_core_mod iscsi_target_mod target_core_file; lio_path=$LIO/core/fileio_$((lio_n++))/$1; truncate -s "$3" "$2"; mkdir -p "$lio_path" && echo "fd_dev_name=$2,fd_dev_size=$3" > "$lio_path/control" && echo 1 > "$lio_path/enable" && echo "$1" > "$lio_path/wwn/vpd_unit_serial"; }
lio_block() { modprobe -a target_core_mod iscsi_target_mod target_core_iblock; lio_path=$LIO/core/iblock_$((lio_n++))/$1; mkdir -p "$lio_path" && echo "udev_path=$2" > "$lio_path/control" && echo 1 > "$lio_path/enable" && echo "$1" > "$lio_path/wwn/vpd_unit_serial"; }
lio_n=0
lio_target() {
  tpg=$LIO/iscsi/$1/tpgt_1; mkdir -p "$tpg" || return
  echo 0 > "$tpg/attrib/authentication"; echo 1 > "$tpg/attrib/generate_node_acls"
  echo 1 > "$tpg/attrib/cache_dynamic_acls"; echo 0 > "$tpg/attrib/demo_mode_write_protect"
}
lio_lun() { mkdir -p "$tpg/lun/lun_$1" && ln -s "$2" "$tpg/lun/lun_$1/port"; }
# lio_portal IP PORT [iser]. LIO first opens a plain TCP socket for a portal and
# only then the RDMA listener on the same address; siw's listener is a TCP socket
# too, so the plain one is put into a throwaway network namespace.
lio_portal() {
  local np=$tpg/np/$1:$2
  if [ "${3-}" = iser ]; then
    unshare -n sh -c "ip link set lo up; ip addr add $1/32 dev lo; mkdir -p $np" && modprobe ib_isert && echo 1 > "$np/iser"
  else mkdir -p "$np"; fi
}
# Credentials without a newline: configfs would keep it as part of the name.
lio_chap() { echo 1 > "$tpg/attrib/authentication"; printf %s "$1" > "$tpg/auth/userid"; printf %s "$2" > "$tpg/auth/password"
  [ $# -lt 4 ] || { printf %s "$3" > "$tpg/auth/userid_mutual"; printf %s "$4" > "$tpg/auth/password_mutual"; }; }

# nvme_up TRANSPORT: the host's module, and for rdma what it goes over.
nvme_up() {
	modprobe nvme-$1 || return
	[ $1 = tcp ] || ${RDMA:-siw}_up
}

# nvmet_up rdma|tcp NQN: Linux' own target on port 3260, with 64 MiB of 512-byte blocks, any host.
nvmet_up() {
	local c=/sys/kernel/config/nvmet s p d
	modprobe -a nvmet nvmet-$1 loop || return
	s=$c/subsystems/$2 p=$c/ports/1
	truncate -s 64M /tmp/nvmet.img && d=$(losetup -f --show /tmp/nvmet.img) && mkdir -p $s && echo 1 >$s/attr_allow_any_host && mkdir -p $s/namespaces/1 &&
		echo -n $d >$s/namespaces/1/device_path && echo 1 >$s/namespaces/1/enable &&
		mkdir -p $p && echo $1 >$p/addr_trtype && echo ipv4 >$p/addr_adrfam && echo $SELF >$p/addr_traddr && echo 3260 >$p/addr_trsvcid &&
		ln -s $s $p/subsystems/$2
}

# nvme_attach TRANSPORT PORT NQN [OPTION…]: connect to an NVMe subsystem, print its disk.
nvme_attach() {
	local transport=$1 port=$2 nqn=$3; shift 3
	nvme connect -t $transport -a $HOST -s $port -n $nqn -i 2 "$@" >/tmp/connect 2>&1 || { cat /tmp/connect; dmesg | tail -5; return 1; }
	nvme_disk $nqn
}

# nvme_disk NQN [NSID]: the disk of a namespace, once it is there.
nvme_disk() {
	local s n d
	for n in $(seq 100); do
		for s in /sys/class/nvme-subsystem/nvme-subsys*; do
			[ "$(cat $s/subsysnqn 2>/dev/null)" = "$1" ] || continue
			for d in $s/nvme*n${2:-1}; do
				d=/dev/${d##*/}; [ -b $d ] && { echo $d; return; }
			done
		done
		sleep 0.1
	done
	echo "no disk of $1"; dmesg | tail -5; return 1
}

# nvme_ctrl NQN: the name of the first controller of a subsystem.
nvme_ctrl() {
	local c
	for c in /sys/class/nvme/nvme*; do [ "$(cat $c/subsysnqn 2>/dev/null)" = "$1" ] && { echo ${c##*/}; return; }; done
	echo "no controller of $1"; return 1
}

# udev_up: device nodes and events for what needs them, as multipathd does.
udev_up() {
	ln -sfn /proc/self/fd /dev/fd
	/usr/lib/systemd/systemd-udevd --daemon && udevadm trigger && udevadm settle
}

# both_paths: waits until multipathd has two paths in order in a map, one of them active. It is
# asked, because "multipath -ll" goes to the devices each time.
both_paths() {
	local n
	for n in $(seq 600); do
		multipathd show paths raw format '%d %t %T' >/tmp/paths 2>&1
		[ "$(grep -cE '^sd[a-z]+ +active +(ready|ghost)' /tmp/paths)" = 2 ] && grep -qE ' active +ready' /tmp/paths && return
		sleep 0.2
	done
	cat /tmp/paths; multipath -ll; return 1
}

# nvme_paths: waits until one path of two is optimized and the other inaccessible, both live.
nvme_paths() {
	local n
	for n in $(seq 300); do
		[ "$(cat /sys/class/nvme/nvme*/state | grep -cx live)" = 2 ] && [ "$(cat /sys/class/nvme/nvme*/nvme*c*n*/ana_state | sort | tr '\n' ' ')" = "inaccessible optimized " ] && return
		sleep 0.3
	done
	grep . /sys/class/nvme/nvme*/state /sys/class/nvme/nvme*/nvme*c*n*/ana_state; return 1
}

# nvme_auth_up: NVMe over TCP and RDMA, host and target, with DH-HMAC-CHAP: the modules that the case
# has put into /job/nvme-auth, and what of the kernel's they need.
nvme_auth_up() {
	local m d
	for m in ffdhe nvme-common nvme-core nvme-fabrics nvme-tcp nvme-rdma nvmet nvmet-tcp nvmet-rdma; do
		grep -q "^${m//-/_} " /proc/modules && continue
		for d in $(modinfo -F depends /job/nvme-auth/$m.ko | tr , ' '); do
			[ -e /job/nvme-auth/${d//_/-}.ko ] || modprobe $d || return
		done
		insmod /job/nvme-auth/$m.ko || return
	done
}
