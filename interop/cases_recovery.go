package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"softiser/interop/internal/guest"
	"softiser/interop/internal/ports"
)

// Parts 2 and 3 again, with failures: what open-iscsi and dm-multipath make of
// a target that dies, a path that is cut, a volume that grows.
var recoveryCases = []Case{
	{Name: "iser/target-killed", Expect: "kill -9 under I/O, restart: no error, data verified", Short: true, Run: func(_ context.Context, e *Env) (string, error) { return targetKilled(e, "iser") }},
	{Name: "tcp/target-killed", Expect: "kill -9 under I/O, restart: no error, data verified", Run: func(_ context.Context, e *Env) (string, error) { return targetKilled(e, "tcp") }},
	{Name: "iser/link-cut", Expect: "10 s without a link: no error, data verified", Run: func(_ context.Context, e *Env) (string, error) { return linkCut(e, "iser") }},
	{Name: "tcp/link-cut", Expect: "10 s without a link: no error, data verified", Run: func(_ context.Context, e *Env) (string, error) { return linkCut(e, "tcp") }},
	{Name: "iser/resize", Expect: "the new size is seen without a new login", Run: func(_ context.Context, e *Env) (string, error) { return resize(e, "iser") }},
	{Name: "tcp/resize", Expect: "the new size is seen without a new login", Run: func(_ context.Context, e *Env) (string, error) { return resize(e, "tcp") }},
	{Name: "iser/multipath", Expect: "one of two paths dies under I/O: no error", Run: func(_ context.Context, e *Env) (string, error) { return multipath(e, "iser") }},
	{Name: "tcp/multipath", Expect: "one of two paths dies under I/O: no error", Run: func(_ context.Context, e *Env) (string, error) { return multipath(e, "tcp") }},
	{Name: "power/guest-killed", Expect: "target and volume in a guest that loses power: what was flushed is there", Fresh: true, Run: powerLoss},
}

func fileTarget(size string) string {
	return `volumes:
  - {name: disk, type: file, path: disk.img, size: ` + size + `, create: true}
targets:
  - iqn: ` + ramIQN + `
    luns: [{lun: 0, volume: disk}]
`
}

// underIO runs fio with verification in the guest, does something to the path
// once 400 of its writes are there, or less than half of all, and wants fio to end without an
// error.
func underIO(e *Env, device string, mib int, disturb func() error) (string, error) {
	g, err := e.Guest()
	if err != nil {
		return "", err
	}
	if _, err := e.In("rm -f /tmp/io-runs"); err != nil { // of a case before this one
		return "", err
	}
	job, err := g.Start(fmt.Sprintf(`trap 'touch /tmp/io-runs' EXIT; %s
stat=/sys/dev/block/$(lsblk -dno MAJ:MIN $d | tr -d " ")/stat
case $d in /dev/nvme*) stat=$(echo /sys/class/nvme/nvme*/nvme*c*n*/stat);; esac # the paths: the disk above them counts nothing
writes() { awk '{ n += $5 } END { print n }' $stat; }
enough=$(($(writes) + %d))
{ until [ $(writes) -ge $enough ]; do sleep 0.1; done; touch /tmp/io-runs; } &
fio --name=w --filename=$d --rw=randwrite --bs=16k --size=%dm --direct=1 --ioengine=libaio --iodepth=16 --verify=crc32c --do_verify=1 --verify_fatal=1 --rate_iops=150 --output-format=json --output=/tmp/w.json >/tmp/w.log 2>&1 || { cat /tmp/w.log /tmp/w.json; die fio; }
jq -r '.jobs[0].write.clat_ns.max | "longest write \(.) ns"' /tmp/w.json; echo fio done`, device, min(400, 25*mib), mib))
	if err != nil {
		return "", err
	}
	if _, err := e.In("until [ -e /tmp/io-runs ]; do sleep 0.1; done"); err != nil {
		out, _ := job.Wait(e.ctx)
		return "", fmt.Errorf("the I/O has not begun: %w\n%s", err, out)
	}
	if job.Done() {
		out, err := job.Wait(e.ctx)
		return "", fmt.Errorf("the I/O ended before anything was disturbed: %v\n%s", err, out)
	}
	if err := disturb(); err != nil {
		return "", err
	}
	return job.Wait(e.ctx)
}

func attachFor(mode string, port int) string {
	// A short ping interval makes open-iscsi notice a dead path soon.
	return fmt.Sprintf("d=$(attach %s %d %s node.conn[0].timeo.noop_out_interval=2 node.conn[0].timeo.noop_out_timeout=3 node.session.timeo.replacement_timeout=120) || die attach: $d", mode, port, ramIQN)
}

func targetKilled(e *Env, mode string) (string, error) {
	t, err := e.Target(fileTarget("64MiB"))
	if err != nil {
		return "", err
	}
	if _, err := underIO(e, attachFor(mode, t.Port), 32, func() error {
		t.Kill()
		time.Sleep(2 * time.Second)
		_, err := e.TargetOn(t.Port, fileTarget("64MiB"))
		return err
	}); err != nil {
		return "", err
	}
	_, err = e.In("detach %s && quiet_kernel", ramIQN)
	return "recovered, verified", err
}

func linkCut(e *Env, mode string) (string, error) {
	t, err := e.Target(fileTarget("64MiB"))
	if err != nil {
		return "", err
	}
	if _, err := underIO(e, attachFor(mode, t.Port), 32, func() error {
		// Packets vanish in both directions; the interface itself, and siw on it, stay.
		_, err := e.In("modprobe sch_netem; tc qdisc add dev eth0 root netem loss 100%% || die tc; sleep 10; tc qdisc del dev eth0 root")
		return err
	}); err != nil {
		return "", err
	}
	_, err = e.In("detach %s && quiet_kernel", ramIQN)
	return "recovered, verified", err
}

func resize(e *Env, mode string) (string, error) {
	socket := filepath.Join(e.dir, "admin.sock")
	t, err := e.Target(fileTarget("64MiB") + "admin: {socket: " + socket + "}\n")
	if err != nil {
		return "", err
	}
	if _, err := e.In("d=$(attach %s %d %s) || die attach; [ $(blockdev --getsize64 $d) = 67108864 ] || die size before", mode, t.Port, ramIQN); err != nil {
		return "", err
	}
	if _, err := e.Host("iser-target", "resize", "--socket", socket, "disk", "96MiB"); err != nil {
		return "", err
	}
	// The unit attention arrives with the next command; Linux then rescans when told to.
	_, err = e.In(`d=$(disk %[1]s); dd if=$d of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null
for i in $(seq 20); do echo 1 > /sys/block/${d##*/}/device/rescan; [ $(blockdev --getsize64 $d) = 100663296 ] && break; sleep 0.3; done
[ $(blockdev --getsize64 $d) = 100663296 ] || die size after: $(blockdev --getsize64 $d)
dmesg | grep -qi 'capacity data has changed' && echo unit attention seen
dd if=/dev/zero of=$d bs=1M seek=80 count=4 oflag=direct || die write beyond the old end; detach %[1]s`, ramIQN)
	return "96 MiB seen and written", err
}

// multipath takes one of two paths away under I/O, which has to go on over the other.
func multipath(e *Env, mode string) (string, error) {
	port2 := ports.Free()
	t, err := e.Target(fmt.Sprintf("  - listen: 127.0.0.1:%d\n    advertise: 10.0.2.2:%d\n", port2, port2) + fileTarget("64MiB"))
	if err != nil {
		return "", err
	}
	iface := map[string]string{"iser": "iser", "tcp": "default"}[mode]
	device := fmt.Sprintf(`siw_up; modprobe -a dm-multipath dm-round-robin dm-service-time
d1=$(attach %[1]s %[2]d %[3]s node.conn[0].timeo.noop_out_interval=1 node.conn[0].timeo.noop_out_timeout=2 node.session.timeo.replacement_timeout=5) || die attach: $d1
iscsiadm -m node -o new -T %[3]s -p $HOST:%[4]d -I %[5]s >/dev/null; iscsiadm -m node -T %[3]s -p $HOST:%[4]d -o update -n node.session.timeo.replacement_timeout -v 5
iscsiadm -m node -T %[3]s -p $HOST:%[4]d -l || die second login
for i in $(seq 100); do set -- /sys/class/iscsi_session/session*/device/target*/*/block/sd*; [ $# = 2 ] && break; sleep 0.1; done
[ $# = 2 ] || die two paths: "$@"
a=${1##*/} b=${2##*/}
dmsetup create mp --table "0 131072 multipath 0 0 1 1 round-robin 0 2 1 $(cat /sys/block/$a/dev) 1 $(cat /sys/block/$b/dev) 1" || die dmsetup
dmsetup mknodes; d=/dev/mapper/mp`, mode, t.Port, ramIQN, port2, iface)
	if _, err := underIO(e, device, 32, func() error {
		// One path vanishes: its packets are dropped, in this case only.
		_, err := e.In("modprobe sch_prio; tc qdisc add dev eth0 root handle 1: prio && tc qdisc add dev eth0 parent 1:3 netem loss 100%% && tc filter add dev eth0 protocol ip parent 1:0 prio 1 u32 match ip dport %d 0xffff flowid 1:3 || die tc", port2)
		return err
	}); err != nil {
		return "", err
	}
	// A session that is ended while it connects anew may keep iscsid and siw waiting for each other for good: ib_iser
	// destroys the queue pair under a mutex, for which the event of the connection waits, which holds the queue pair.
	_, err = e.In(`dmsetup remove mp; tc qdisc del dev eth0 root
for i in $(seq 240); do grep -qv LOGGED_IN /sys/class/iscsi_session/session*/state || break; sleep 0.25; done
grep -qv LOGGED_IN /sys/class/iscsi_session/session*/state && die the path has not come back
iscsiadm -m node -u >/dev/null; iscsiadm -m node -o delete; quiet_kernel`)
	return "I/O went on over the other path, which came back", err
}

// powerLoss runs target and volume inside a guest whose disk survives it. What
// the initiator has flushed before the guest vanishes must be on the disk.
func powerLoss(_ context.Context, e *Env) (string, error) {
	g, err := e.Boot(guest.Options{Disks: []int64{256 << 20}})
	if err != nil {
		return "", err
	}
	disk := filepath.Join(g.Dir(), "disk0.img")
	if _, err := g.Run(e.ctx, `mkfs.ext4 -q /dev/vdb && mount /dev/vdb /mnt && cat > /tmp/t.yaml <<X
portals: [{listen: "0.0.0.0:3260"}]
volumes: [{name: disk, type: file, path: /mnt/disk.img, size: 64MiB, create: true}]
targets: [{iqn: `+ramIQN+`, luns: [{lun: 0, volume: disk}]}]
X
setsid /host/iser-target serve --config /tmp/t.yaml >/tmp/t.log 2>&1 &
for i in $(seq 50); do grep -q 3260 /tmp/t.log && break; sleep 0.1; done; cat /tmp/t.log`); err != nil {
		return "", err
	}
	// 8 MiB of a known pattern, flushed; the guest is killed at once after the
	// acknowledgement of the flush.
	pattern := filepath.Join(e.dir, "pattern")
	want := []byte(strings.Repeat("what was flushed is there\n", 8<<20/26+1))[:8<<20]
	if err := os.WriteFile(pattern, want, 0o644); err != nil {
		return "", err
	}
	url := fmt.Sprintf("iser://127.0.0.1:%d/%s/0", e.Port(3260), ramIQN)
	if _, err := e.Host("iser-initiator", "write", url, "--offset", "1MiB", pattern); err != nil {
		return "", err
	}
	g.Kill()
	after, err := e.Boot(guest.Options{Disks: []int64{1 << 20}})
	if err != nil {
		return "", err
	}
	// The dead guest's disk, as the next power-on finds it.
	if err := os.Rename(disk, filepath.Join(after.Dir(), "survivor.img")); err != nil {
		return "", err
	}
	out, err := after.Run(e.ctx, "modprobe -a loop ext4; l=$(losetup -f --show /job/survivor.img) && mount $l /mnt && dd if=/mnt/disk.img bs=1M skip=1 count=8 2>/dev/null | md5sum; umount /mnt")
	if err != nil {
		return out, err
	}
	if !strings.Contains(out, md5Of(want)) {
		return "", fmt.Errorf("flushed data is not there after the power loss:\n%s", out)
	}
	return "all 8 MiB are there", nil
}
