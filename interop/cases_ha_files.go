package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"softiser/interop/internal/guest"
	"softiser/interop/internal/ports"
)

// Cluster file systems of two Linux kernels on one LUN of ours.

var fileSystemCases = []Case{{
	Name:   "ha/ocfs2-tcp",
	Expect: ocfs2Expect,
	Kind:   guest.Cluster, Fresh: true, Limit: 30 * time.Minute,
	Run: func(_ context.Context, e *Env) (string, error) { return ocfs2(e, "tcp") },
}, {
	Name:   "ha/ocfs2-iser",
	Expect: ocfs2Expect,
	Kind:   guest.Cluster, Fresh: true, Limit: 30 * time.Minute,
	Run: func(_ context.Context, e *Env) (string, error) { return ocfs2(e, "iser") },
}, {
	Name:   "ha/gfs2",
	Expect: "two kernels with dlm; a node that hangs is fenced by fence_scsi on our LUN, its late writes meet RESERVATION CONFLICT, the other one recovers; fsck finds nothing",
	Kind:   guest.Cluster, Fresh: true, Limit: 30 * time.Minute,
	Run: gfs2,
}}

const ocfs2Expect = "two kernels mount one LUN, take turns under a lock, see each other's files; power cut of one: the other goes on, what was flushed is there, fsck finds nothing"

const sharedTarget = `volumes:
  - {name: shared, type: file, path: shared.img, size: 512MiB, create: true, write_through: true}
targets:
  - iqn: ` + haIQN + `
    luns: [{lun: 0, volume: shared}]
admin: {state_dir: state}
`

// twoKernels are guests a and b, joined by eth1, with a session each to one target of ours.
type twoKernels struct {
	e     *Env
	mu    sync.Mutex // guards nodes while they boot
	nodes map[string]*guest.Guest
}

func newTwoKernels(e *Env, mode string, files ...string) (*twoKernels, error) {
	t, err := e.Target(sharedTarget)
	if err != nil {
		return nil, err
	}
	k := &twoKernels{e: e, nodes: map[string]*guest.Guest{}}
	pa, pb := ports.Free(), ports.Free()
	links := map[string]guest.Link{"a": {Port: pa, Peer: pb, MAC: 1}, "b": {Port: pb, Peer: pa, MAC: 2}}
	if err := k.each(func(name string) error { return k.boot(name, links[name], files) }); err != nil {
		return nil, err
	}
	return k, k.both(fmt.Sprintf(`
number=1; [ $n = a ] || number=2
echo $n > /proc/sys/kernel/hostname; ln -sfn /proc/self/fd /dev/fd
printf '127.0.0.1 localhost\n192.0.2.1 a\n192.0.2.2 b\n' > /etc/hosts
ip link set eth1 up && ip addr add 192.0.2.$number/24 dev eth1 || die eth1
initiator %s:$n || die iscsid
d=$(attach %s %d %s node.conn[0].timeo.noop_out_interval=10 node.conn[0].timeo.noop_out_timeout=30) || die attach: $d
ln -s $d /dev/shared`, haIQN, mode, t.Port, haIQN))
}

// on runs a script on a node, with its name in $n and that of the other one in $o.
func (k *twoKernels) on(name, script string) (string, error) {
	other := map[string]string{"a": "b", "b": "a"}[name]
	out, err := k.nodes[name].Run(k.e.ctx, "n="+name+" o="+other+"\n"+script)
	if err != nil {
		return out, fmt.Errorf("node %s: %w", name, err)
	}
	return out, nil
}

// boot boots a node with files of docs/ha.
func (k *twoKernels) boot(name string, link guest.Link, files []string) error {
	g, err := k.e.Node(guest.Options{Links: []guest.Link{link}})
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.nodes[name] = g
	k.mu.Unlock()
	for _, f := range files {
		text, err := haFile(f)
		if err != nil {
			return err
		}
		if err := intoGuest(g, f, text); err != nil {
			return err
		}
	}
	return nil
}

// each does the same for both nodes at once.
func (k *twoKernels) each(f func(name string) error) error {
	var wg sync.WaitGroup
	var errs [2]error
	for i, name := range []string{"a", "b"} {
		wg.Go(func() { errs[i] = f(name) })
	}
	wg.Wait()
	return errors.Join(errs[:]...)
}

// both runs a script on both nodes at once.
func (k *twoKernels) both(script string) error {
	return k.each(func(name string) error { _, err := k.on(name, script); return err })
}

// sharing has both nodes, with the file system at /mnt, see each other's files, and append to
// one file in turns: each has to see all that was appended before.
func (k *twoKernels) sharing(appends int) error {
	// The file of the turns is there before them: of two nodes that create one at the same
	// moment, OCFS2 tells one that it exists, although it has not asked for a new one (no O_EXCL).
	_, err := k.on("a", `: > /mnt/log && sync /mnt/log || die log`)
	return errors.Join(
		err,
		k.both(`for i in $(seq 20); do echo $n $i > /mnt/$n.$i; done; sync`),
		k.both(`[ "$(cat /mnt/$o.20)" = "$o 20" ] || die content of $o; [ $(ls /mnt | grep -c "^$o\.") = 20 ] || die list of $o`),
		k.both(fmt.Sprintf(`for i in $(seq %d); do flock /mnt/log sh -c "echo $n \$(wc -l < /mnt/log) >> /mnt/log" || die turn $i; done`, appends)),
		k.both(fmt.Sprintf(`[ $(wc -l < /mnt/log) = %d ] && awk '$2 != NR-1 { print "line " NR ": " $0; bad = 1 } END { exit bad }' /mnt/log || die the appends were not in turns`, 2*appends)),
	)
}

// ocfs2 is the kernel's own cluster stack: heartbeat on the disk, locks over eth1.
func ocfs2(e *Env, mode string) (string, error) {
	k, err := newTwoKernels(e, mode, "ocfs2-cluster.conf")
	if err != nil {
		return "", err
	}
	if err := k.both(`mkdir -p /etc/ocfs2; cp /job/ocfs2-cluster.conf /etc/ocfs2/cluster.conf
modprobe -a ocfs2_stack_o2cb ocfs2 ocfs2_dlmfs || die modules
o2cb register-cluster lab || die register`); err != nil {
		return "", err
	}
	if _, err := k.on("a", `mkfs.ocfs2 -q -b 4K -C 4K -N 4 -J size=8M --cluster-stack=o2cb --cluster-name=lab -L lab -F /dev/shared || die mkfs`); err != nil {
		return "", err
	}
	if err := k.both(`mount -t ocfs2 /dev/shared /mnt || die mount`); err != nil {
		return "", err
	}
	if err := k.sharing(30); err != nil {
		return "", err
	}
	took, err := k.powerCut()
	if err != nil {
		return "", err
	}
	_, err = k.on("b", `umount /mnt || die umount
fsck.ocfs2 -fn /dev/shared >/tmp/fsck 2>&1 && grep -q 'All passes succeeded' /tmp/fsck || { cat /tmp/fsck; die fsck; }
detach `+haIQN+`; quiet_kernel`)
	return fmt.Sprintf("60 appends in turns; b went on %.0f s after the power cut; clean", took.Seconds()), err
}

// powerCut turns a off while it appends numbers to a file and flushes each, and measures
// until b has read that file, which takes the lock of a: every number that was flushed is there.
func (k *twoKernels) powerCut() (time.Duration, error) {
	a := k.nodes["a"]
	job, err := a.Start(`for i in $(seq 100000); do echo $i >> /mnt/counted; sync /mnt/counted || die sync; echo $i > /job/flushed.new; mv /job/flushed.new /job/flushed; done`)
	if err != nil {
		return 0, err
	}
	flushed := func() int {
		b, _ := os.ReadFile(filepath.Join(a.Dir(), "flushed"))
		n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		return n
	}
	for flushed() < 20 {
		if job.Done() {
			out, err := job.Wait(k.e.ctx)
			return 0, fmt.Errorf("it ended early: %w\n%s", err, out)
		}
		select {
		case <-k.e.ctx.Done():
			return 0, context.Cause(k.e.ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
	a.Kill()
	began, promised := time.Now(), flushed()
	_, err = k.on("b", fmt.Sprintf(`flock /mnt/log true; touch /mnt/after || die touch
[ $(wc -l < /mnt/counted) -ge %[1]d ] && awk 'NR <= %[1]d && $1 != NR { bad = 1 } END { exit bad }' /mnt/counted || { tail -3 /mnt/counted; die %[1]d were flushed; }`, promised))
	return time.Since(began), err
}

// gfs2 is Corosync, dlm and fence_scsi. Node a hangs, its kernel goes on: to b it is lost, and
// what it writes afterwards would be written over what b has.
func gfs2(_ context.Context, e *Env) (string, error) {
	k, err := newTwoKernels(e, "tcp", "corosync.conf", "dlm.conf")
	if err != nil {
		return "", err
	}
	if err := k.both(`mkdir -p /var/lib/corosync /etc/corosync /etc/dlm /var/log/cluster /dev/misc /run/cluster
cp /job/corosync.conf /etc/corosync/; cp /job/dlm.conf /etc/dlm/
modprobe -a dlm gfs2 || die modules
for f in dlm-control dlm-monitor dlm_plock; do ln -sf ../$f /dev/misc/$f; done # as udev names them
corosync || die corosync
for i in $(seq 600); do [ "$(corosync-quorumtool -s 2>/dev/null | awk '/^Total votes/ { print $3 }')" = 2 ] && break; sleep 0.3; done
corosync-quorumtool -s | grep -q '^Quorate: *Yes' || { tail /var/log/corosync.log; die no quorum; }
fence_scsi -o on -n $n -d /dev/shared || die fence_scsi on
dlm_controld -D >/job/dlm.log 2>&1 &
for i in $(seq 100); do dlm_tool status >/dev/null 2>&1 && exit 0; sleep 0.3; done; tail /job/dlm.log; die dlm_controld`); err != nil {
		return "", err
	}
	if _, err := k.on("b", `[ $(sg_persist -n -i -k /dev/shared | grep -c '^ *0x') = 2 ] || die registrations: $(sg_persist -n -i -k /dev/shared)
sg_persist -n -i -r /dev/shared | grep -q 'Write Exclusive, registrants only' || die reservation: $(sg_persist -n -i -r /dev/shared)
mkfs.gfs2 -q -O -t lab:shared -p lock_dlm -j 2 -J 8 /dev/shared || die mkfs`); err != nil {
		return "", err
	}
	if err := k.both(`mount -t gfs2 /dev/shared /mnt || die mount`); err != nil {
		return "", err
	}
	if err := k.sharing(20); err != nil {
		return "", err
	}
	// a has the lock of the file when its Corosync stops and its link to b goes; b waits until
	// a is fenced.
	if _, err := k.on("a", `echo first > /mnt/late && sync /mnt/late || die write; kill -STOP $(pgrep -x corosync) && ip link set eth1 down || die hang`); err != nil {
		return "", err
	}
	began := time.Now()
	if _, err := k.on("b", `echo second > /mnt/late && sync /mnt/late || { tail /job/dlm.log; die write; }
[ $(sg_persist -n -i -k /dev/shared | grep -c '^ *0x') = 1 ] || die registrations: $(sg_persist -n -i -k /dev/shared)`); err != nil {
		return "", err
	}
	took := time.Since(began)
	// The file system of a does not bear the answer: it withdraws, and whoever writes hangs.
	if _, err := k.on("a", `dmesg -C
dd if=/dev/zero of=/dev/shared bs=4k count=1 seek=100000 oflag=direct 2>/dev/null && die a fenced node has written a block
dmesg | grep -q 'reservation conflict' || { dmesg; die no reservation conflict; }
setsid sh -c 'echo third > /mnt/late; sync /mnt/late && touch /job/late-write' >/dev/null 2>&1 </dev/null &
for i in $(seq 300); do dmesg | grep -qi 'gfs2.*withdraw' && break; sleep 0.3; done
dmesg | grep -qi 'gfs2.*withdraw' || { dmesg; die the file system has not withdrawn; }
[ ! -e /job/late-write ] || die a fenced node has written a file`); err != nil {
		return "", err
	}
	k.nodes["a"].Kill()
	_, err = k.on("b", `echo 3 > /proc/sys/vm/drop_caches; [ "$(cat /mnt/late)" = second ] || die the file says $(cat /mnt/late)
umount /mnt || die umount; fsck.gfs2 -n /dev/shared >/tmp/fsck 2>&1 || { cat /tmp/fsck; die fsck; }`)
	return fmt.Sprintf("40 appends in turns; b went on after %.0f s; late writes: reservation conflict; clean", took.Seconds()), err
}
