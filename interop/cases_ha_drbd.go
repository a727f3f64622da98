package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"softiser/interop/internal/guest"
	"softiser/interop/internal/ports"
)

// A DRBD pair in two guests with iser-target on the primary.

var drbdCases = []Case{{
	Name:   "ha/drbd-pair",
	Expect: "power cut of the primary under load, the other one takes over: no error, nothing acknowledged is lost; rejoin, resync, online verify finds no difference; a planned move back; a primary that is paused until the other has taken over, and goes on: none of its writes is acknowledged, or there after the resync",
	Kind:   guest.Cluster, Fresh: true, Limit: 40 * time.Minute,
	Run: drbdPair,
}}

// drbdNode is one guest of a pair. Its disks outlive it.
type drbdNode struct {
	*guest.Guest
	name   string
	port   int // on the host's loopback, of the target in it
	link   guest.Link
	netns  string // where it runs, "" for the host's own
	images []string
	config map[string]string // files of its /job folder
}

// newDRBDNodes prepares both, and starts none.
func newDRBDNodes(e *Env) ([2]*drbdNode, error) {
	conf, err := haFile("drbd.conf")
	if err != nil {
		return [2]*drbdNode{}, err
	}
	target, err := haFile("drbd-target.yaml")
	if err != nil {
		return [2]*drbdNode{}, err
	}
	targets := [2]string{target, otherNode.Replace(target)}
	pa, pb := ports.Free(), ports.Free()
	nodes := [2]*drbdNode{
		{name: "a", port: ports.Free(), link: guest.Link{Port: pa, Peer: pb, MAC: 1}},
		{name: "b", port: ports.Free(), link: guest.Link{Port: pb, Peer: pa, MAC: 2}},
	}
	for i, n := range nodes {
		for disk, size := range map[string]int64{"data": 96 << 20, "store": 32 << 20} {
			f, err := os.Create(filepath.Join(e.dir, disk+"-"+n.name+".img"))
			if err != nil {
				return nodes, err
			}
			err = f.Truncate(size)
			f.Close()
			if err != nil {
				return nodes, err
			}
		}
		n.images = []string{filepath.Join(e.dir, "data-"+n.name+".img"), filepath.Join(e.dir, "store-"+n.name+".img")}
		n.config = map[string]string{"drbd.conf": conf, "target.yaml": targets[i]}
	}
	return nodes, nil
}

// otherNode makes the configuration of node b of that of node a.
var otherNode = strings.NewReplacer("node: a", "node: b", "group: 1}", "group: 2}", "group: 2}", "group: 1}", "192.0.2.2:", "192.0.2.1:")

// powerOn boots the node, joins the pair, and starts a target on standby.
func (n *drbdNode) powerOn(e *Env) error {
	if err := n.boot(e); err != nil {
		return err
	}
	_, err := n.run(e, drbdUp)
	return err
}

// boot boots the node with its files.
func (n *drbdNode) boot(e *Env) error {
	g, err := e.Node(guest.Options{Images: n.images, Links: []guest.Link{n.link}, Netns: n.netns, Forward: map[int]int{n.port: 3260}})
	if err != nil {
		return err
	}
	n.Guest = g
	for name, text := range n.config {
		if err := intoGuest(g, name, text); err != nil {
			return err
		}
	}
	return nil
}

// both does the same on both nodes at once.
func both(nodes [2]*drbdNode, f func(*drbdNode) error) error {
	var wg sync.WaitGroup
	var errs [2]error
	for i, n := range nodes {
		wg.Go(func() { errs[i] = f(n) })
	}
	wg.Wait()
	return errors.Join(errs[:]...)
}

// url is the volume at this node, through the host's loopback.
func (n *drbdNode) url() string { return fmt.Sprintf("iser://127.0.0.1:%d/%s/0", n.port, haIQN) }

func (n *drbdNode) run(e *Env, script string) (string, error) {
	out, err := n.Run(e.ctx, "n="+n.name+"\n"+drbdHelpers+script)
	if err != nil {
		return out, fmt.Errorf("node %s: %w", n.name, err)
	}
	return out, nil
}

// drbdHelpers: both volumes are in a state; the node takes or gives up what there is.
const drbdHelpers = `
ctl() { local c=$1; shift; /run/iser-target $c --socket /run/target.sock "$@"; }
both() { [ "$(drbdadm $1 disks | tr '\n' ' ')" = "$2 $2 " ]; }
wait_for() { local i; for i in $(seq 600); do both "$@" && return; sleep 0.3; done; drbdadm cstate disks; drbdadm dstate disks; cat /proc/drbd; die "not $*"; }
# drbdadm gives each step five seconds, which may be too few here; adjust goes on where it has stopped.
join() { local i; for i in $(seq 20); do drbdadm adjust disks >/tmp/adjust 2>&1 && return; sleep 1; done; cat /tmp/adjust; die adjust; }
# While the connection to a lost peer is being given up, one is not made primary: the agent of the cluster tries again too.
primary() { local i; for i in $(seq 30); do drbdadm primary disks 2>/tmp/primary && return; sleep 1; done; cat /tmp/primary; die primary; }
take() { primary; mount /dev/drbd1 /srv/softiser || die mount; ctl promote --timeout 60s disks || die promote; }
give() { ctl demote --timeout 60s disks || die demote; umount /srv/softiser || die umount; drbdadm secondary disks || die secondary; }
`

// replicated waits until the node has received some hundred writes of the load; drbd0 is the
// first in the table.
const replicated = `for i in $(seq 3000); do [ $(sed -n 's/.* nr:\([0-9]*\) .*/\1/p' /proc/drbd | head -1) -ge 1200 ] && exit 0; sleep 0.1; done; cat /proc/drbd; die no writes`

// drbdUp makes a guest a node of the pair. DRBD's handler for a lost peer is the harness
// here: it answers when that has been turned off, or that it is primary.
const drbdUp = `
number=1; [ $n = a ] || number=2
echo $n > /proc/sys/kernel/hostname
ip link set eth1 up && ip addr add 192.0.2.$number/24 dev eth1 || die eth1
mkdir -p /var/lib/drbd /var/lock /run/lock/drbd /srv/softiser /run/state
printf '#!/bin/bash\nfor i in $(seq 300); do [ -e /job/peer-is-off ] && exit 7; [ -e /job/peer-is-primary ] && exit 6; sleep 0.2; done; exit 1\n' > /job/fence-peer; chmod +x /job/fence-peer
sed 's#/usr/lib/drbd/crm-fence-peer.sh#/job/fence-peer#; /crm-unfence-peer/d' /job/drbd.conf > /etc/drbd.conf
modprobe drbd || die module
[ -e /job/has-data ] || drbdadm --force create-md disks </dev/null >/dev/null 2>&1 || die create-md
join
cp /host/iser-target /run/ && { setsid /run/iser-target serve --config /job/target.yaml >/job/target.log 2>&1 </dev/null & }
for i in $(seq 300); do [ "$(ctl group disks 2>/dev/null)" = standby ] && exit 0; sleep 0.2; done
cat /job/target.log; die the target is not there`

// drbdPair goes twice around: load, a is lost, b takes over, a comes back, and takes over again
// as planned. First its power is cut, then it is paused.
func drbdPair(_ context.Context, e *Env) (string, error) {
	nodes, err := newDRBDNodes(e)
	if err != nil {
		return "", err
	}
	a, b := nodes[0], nodes[1]
	if err := both(nodes, func(n *drbdNode) error { return n.powerOn(e) }); err != nil {
		return "", err
	}
	// Both disks are blank: that they are the same is said once, instead of a full copy.
	if _, err := b.run(e, "wait_for cstate Connected"); err != nil {
		return "", err
	}
	if _, err := a.run(e, `drbdadm new-current-uuid --clear-bitmap disks/0 && drbdadm new-current-uuid --clear-bitmap disks/1 || die uuid
wait_for dstate UpToDate/UpToDate; drbdadm primary disks && mkfs.ext4 -q /dev/drbd1 && drbdadm secondary disks || die file system
take`); err != nil {
		return "", err
	}
	cut, err := lostPrimary(e, a, b, powerIsCut)
	if err != nil {
		return "", err
	}
	paused, err := lostPrimary(e, a, b, wakesLate)
	if err != nil {
		return "", fmt.Errorf("a paused primary: %w", err)
	}
	if _, err := a.run(e, "give"); err != nil {
		return "", err
	}
	return fmt.Sprintf("power cut: %s; paused: %s; oos:0, verified on both", cut, paused), nil
}

// lostPrimary has b take over from a under load, and a come back. lose is what happens to a;
// afterwards, once b has all of the load, it ends what is left of a, and says what there was.
func lostPrimary(e *Env, a, b *drbdNode, lose func(*Env, *drbdNode) (afterwards func() (string, error), err error)) (string, error) {
	load, ledger, err := e.ledgerLoad(fmt.Sprintf("ledger.%d", len(e.procs)), a.url()+","+b.url(), time.Minute)
	if err != nil {
		return "", err
	}
	if _, err := b.run(e, replicated); err != nil {
		return "", err
	}
	afterwards, err := lose(e, a)
	if err != nil {
		return "", err
	}
	if err := intoGuest(b.Guest, "peer-is-off", ""); err != nil {
		return "", err
	}
	if _, err := b.run(e, "take; wait_for dstate UpToDate/Outdated"); err != nil {
		return "", err
	}
	said, err := load()
	if err != nil {
		return "", err
	}
	late, err := afterwards()
	if err != nil {
		return "", err
	}
	if err := e.checkLedger(b.url(), ledger); err != nil {
		return "", fmt.Errorf("on b: %w", err)
	}
	synced, err := rejoin(e, a, b)
	if err != nil {
		return "", err
	}
	if _, err := b.run(e, "give"); err != nil {
		return "", err
	}
	if _, err := a.run(e, "take"); err != nil {
		return "", err
	}
	if err := e.checkLedger(a.url(), ledger); err != nil {
		return "", fmt.Errorf("on a, after the move back: %w", err)
	}
	return fmt.Sprintf("%s%s, resync of %s", said, late, synced), nil
}

func powerIsCut(_ *Env, a *drbdNode) (func() (string, error), error) {
	a.Kill()
	return func() (string, error) { return "", nil }, nil
}

// wakesLate pauses a primary, and has it go on when the other one has been told that it is off
// and has done all of the load. What it had at hand is old then. Its DRBD finds the connection
// gone, holds the writes back, and is told that the other one is primary.
func wakesLate(e *Env, a *drbdNode) (func() (string, error), error) {
	if err := errors.Join(intoGuest(a.Guest, "peer-is-primary", ""), a.Pause(true)); err != nil {
		return nil, err
	}
	then, err := loadArea(a)
	return func() (string, error) {
		if err := a.Pause(false); err != nil {
			return "", err
		}
		if err := e.notAcknowledged(a.url()); err != nil {
			return "", err
		}
		if _, err := a.run(e, `for i in $(seq 300); do grep -q 'cs:Connected' /proc/drbd || break; sleep 0.2; done
dmesg | grep -E 'fence-peer|Split-Brain|SyncTarget, but I am primary' | tail -4; cat /proc/drbd
drbdadm cstate disks | grep -q Connected && die the paused primary is connected; exit 0`); err != nil {
			return "", err
		}
		a.Kill()
		now, err := loadArea(a)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf(", %d late writes to its own disk, none acknowledged", differing(then, now)), nil
	}, err
}

// notAcknowledged writes at a node that must not say that it has done so.
func (e *Env) notAcknowledged(url string) error {
	p, err := e.Start("iser-initiator", "bench", url, "--rw=write", "--bs=4k", "--size=64k", "--offset=15m", "--replacement-timeout=5s", "--command-timeout=5s")
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		p.Kill()
	case <-e.ctx.Done():
		return context.Cause(e.ctx)
	}
	if p.err == nil {
		return errors.New("a primary that was paused until another took over has acknowledged writes")
	}
	return nil
}

// loadArea is what a node's own disk has where the load writes. Nothing of the guest may run.
func loadArea(n *drbdNode) ([]byte, error) {
	f, err := os.Open(n.images[0])
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, loadSize)
	_, err = f.ReadAt(b, 0)
	return b, err
}

// differing counts the blocks of 4 KiB that are not the same.
func differing(a, b []byte) (n int) {
	for at := 0; at < len(a); at += 4096 {
		if !bytes.Equal(a[at:at+4096], b[at:at+4096]) {
			n++
		}
	}
	return n
}

// rejoin turns a on again, with its old disks: what has changed since is copied, and nothing
// else. Where both have parted, docs/ha/SPLIT-BRAIN.md says what is done: what only a has goes.
func rejoin(e *Env, a, b *drbdNode) (synced string, err error) {
	a.config["has-data"] = ""
	if err := os.Remove(filepath.Join(b.Dir(), "peer-is-off")); err != nil {
		return "", err
	}
	if err := a.powerOn(e); err != nil {
		return "", err
	}
	if _, err := b.run(e, "join"); err != nil { // it may have given the connection up
		return "", err
	}
	out, err := a.run(e, `for i in $(seq 100); do
  case $(drbdadm cstate disks) in *StandAlone*) break ;; *WFConnection*) sleep 0.3 ;; *) exit 0 ;; esac
done
echo they have parted; drbdadm disconnect disks; drbdadm connect --discard-my-data disks || die connect`)
	if err != nil {
		return "", err
	}
	if strings.TrimSpace(out) != "" {
		if _, err := b.run(e, "join"); err != nil {
			return "", err
		}
	}
	out, err = a.run(e, `wait_for cstate Connected; wait_for dstate UpToDate/UpToDate
dmesg | sed -n 's/.*block drbd0: .*will sync \([0-9]* KB\).*/\1/p' | tail -1`)
	if err != nil {
		return "", err
	}
	_, err = a.run(e, `drbdadm verify disks || die verify
for i in $(seq 600); do drbdadm cstate disks | grep -q Verify || break; sleep 0.5; done; wait_for cstate Connected
[ $(dmesg | grep -c 'Online verify done') = 2 ] || die verify has not ended
[ $(grep -o 'oos:[0-9]*' /proc/drbd | sort -u) = oos:0 ] || { cat /proc/drbd; die the disks differ; }`)
	return lastLine(out), err
}

// ledgerLoad starts writes of 4 KiB that are noted in a ledger once they are acknowledged,
// for runtime, in which all that the case does to the nodes has to be over. wait waits for
// their end, which has to come without an error.
func (e *Env) ledgerLoad(name, url string, runtime time.Duration) (wait func() (string, error), ledger string, err error) {
	ledger = filepath.Join(e.dir, name)
	report := ledger + ".json"
	p, err := e.Start("iser-initiator", append(ledgerArgs(url, ledger), "--time-based", fmt.Sprintf("--runtime=%d", runtime/time.Second), "--output-format=json", "--output="+report)...)
	if err != nil {
		return nil, "", err
	}
	return func() (string, error) {
		select {
		case <-p.done:
		case <-e.ctx.Done():
			return "", context.Cause(e.ctx)
		}
		if p.err != nil {
			return "", fmt.Errorf("the load: %w", p.err)
		}
		return loadSummary(report)
	}, ledger, nil
}

const loadSize = 16 << 20

func ledgerArgs(url, ledger string) []string {
	return []string{"bench", url, "--replacement-timeout=-1s", "--command-timeout=-1s", "--no-path-retry=queue", "--rw=randwrite", "--bs=4k", "--iodepth=8", fmt.Sprintf("--size=%d", loadSize), "--verify=crc32c", "--verify-state=" + ledger}
}

// checkLedger reads back what the ledger names.
func (e *Env) checkLedger(url, ledger string) error {
	_, err := e.Host("iser-initiator", append(ledgerArgs(url, ledger), "--verify-only")...)
	return err
}

// loadSummary is what bench's report says of the writes.
func loadSummary(report string) (string, error) {
	b, err := os.ReadFile(report)
	if err != nil {
		return "", err
	}
	var r struct {
		Jobs []struct {
			Write struct {
				IOs     int64 `json:"total_ios"`
				Latency struct {
					Max float64 `json:"max"`
				} `json:"clat_ns"`
			} `json:"write"`
		} `json:"jobs"`
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return "", fmt.Errorf("%s: %w", report, err)
	}
	if len(r.Jobs) != 1 || r.Jobs[0].Write.IOs == 0 {
		return "", fmt.Errorf("%s has no writes", report)
	}
	w := r.Jobs[0].Write
	return fmt.Sprintf("%d writes, the longest took %.1f s", w.IOs, w.Latency.Max/1e9), nil
}
