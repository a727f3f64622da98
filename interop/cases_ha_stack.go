package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"softiser/interop/internal/guest"
)

// Everything that docs/ha describes, together: DRBD, Pacemaker, fencing, iser-target by its
// agent, an address that moves. The load comes from the host.

var stackCases = []Case{{
	Name:   "ha/stack",
	Expect: "DRBD, Pacemaker, fencing, ocf:softiser:target, floating address in two guests; power cut of the active one under load from the host: no error, nothing acknowledged is lost",
	Kind:   guest.Cluster, Fresh: true, Limit: 50 * time.Minute,
	Run: stack,
}}

//go:embed ha_fence_switch.sh
var fenceSwitch string

// segment is an Ethernet segment in a network namespace of the host: a bridge with the host's
// own address, 192.0.2.254, and a tap for each guest.
type segment struct{ netns string }

func newSegment(taps ...string) (*segment, error) {
	s := &segment{netns: fmt.Sprintf("softiser-ha-%d", os.Getpid())}
	if err := ip("netns add " + s.netns); err != nil {
		return nil, err
	}
	steps := []string{"link set lo up", "link add br0 type bridge forward_delay 0", "addr add 192.0.2.254/24 dev br0", "link set br0 up"}
	for _, t := range taps {
		steps = append(steps, "tuntap add "+t+" mode tap", "link set "+t+" master br0 up")
	}
	for _, step := range steps {
		if err := ip("-n " + s.netns + " " + step); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	return s, nil
}

func (s *segment) close() error { return ip("netns del " + s.netns) }

func ip(args string) error {
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w %s", args, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// stackUp makes a guest a node of the cluster and starts Pacemaker. Both disks are blank: DRBD
// is told so, and gets the file system of the store, before the cluster has it.
const stackUp = `
number=1; [ $n = a ] || number=2
echo $n > /proc/sys/kernel/hostname; ln -sfn /proc/self/fd /dev/fd
for s in stdin:0 stdout:1 stderr:2; do ln -sf /proc/self/fd/${s#*:} /dev/${s%:*}; done # as udev makes them; the agents use them
printf '127.0.0.1 localhost\n192.0.2.1 a\n192.0.2.2 b\n' > /etc/hosts
ip link set eth1 up && ip addr add 192.0.2.$number/24 dev eth1 || die eth1
# What the packages' own scripts would have done.
ln -sf which.debianutils /usr/bin/which # the agents look for their tools with it
grep -q haclient /etc/group || { echo haclient:x:189: >> /etc/group; echo hacluster:x:189:189::/var/lib/pacemaker:/usr/sbin/nologin >> /etc/passwd; }
mkdir -p /var/lib/corosync /etc/corosync /var/lib/pacemaker/{cib,pengine,cores,blackbox} /var/log/pacemaker /run/crm /run/resource-agents /var/lib/drbd /var/lock /run/lock/drbd /srv/softiser /run/state /etc/softiser /usr/lib/ocf/resource.d/softiser /usr/local/bin
cp /job/corosync.conf /etc/corosync/; cp /job/drbd.conf /etc/; cp /job/target.yaml /etc/softiser/iser-target.yaml
cp /host/iser-target /usr/local/bin/ || die iser-target
install -m 755 /job/target /usr/lib/ocf/resource.d/softiser/target; install -m 755 /job/fence_switch /usr/sbin/fence_switch
install -m 600 /job/pacemaker.xml /var/lib/pacemaker/cib/cib.xml
chown -R hacluster:haclient /var/lib/pacemaker /var/log/pacemaker /run/crm
modprobe drbd || die module
drbdadm --force create-md disks </dev/null >/dev/null 2>&1 || die create-md
join
wait_for cstate Connected
if [ $n = a ]; then
  drbdadm new-current-uuid --clear-bitmap disks/0 && drbdadm new-current-uuid --clear-bitmap disks/1 || die uuid
  drbdadm primary disks && mkfs.ext4 -q /dev/drbd1 && drbdadm secondary disks || die file system
fi
wait_for dstate UpToDate/UpToDate
corosync || die corosync
for i in $(seq 300); do corosync-cfgtool -s >/dev/null 2>&1 && break; sleep 0.3; done # pacemakerd does not wait for long
export PCMK_logfile=/job/pacemaker.log PCMK_logpriority=notice
setsid pacemakerd >/job/pacemakerd.log 2>&1 </dev/null &
for i in $(seq 300); do crm_mon -1 >/dev/null 2>&1 && exit 0; sleep 0.5; done; die no pacemaker`

// serving waits until the address is here.
const serving = `for i in $(seq 3000); do ip -br addr show eth1 | grep -q 192.0.2.100 && exit 0; sleep 0.2; done; crm_mon -1r; die the address is not here`

// stack waits for what the cluster makes of it by itself; only the power is its own.
func stack(_ context.Context, e *Env) (string, error) {
	net, err := newSegment("tapa", "tapb")
	if err != nil {
		return "", err
	}
	defer net.close()
	nodes, err := newDRBDNodes(e)
	if err != nil {
		return "", err
	}
	agent, err := os.ReadFile(filepath.Join("packaging", "ocf", "softiser", "target"))
	if err != nil {
		return "", err
	}
	for i, n := range nodes {
		n.config["target"], n.config["fence_switch"] = string(agent), fenceSwitch
		for _, name := range []string{"corosync.conf", "pacemaker.xml"} {
			if n.config[name], err = haFile(name); err != nil {
				return "", err
			}
		}
		n.netns, n.link = net.netns, guest.Link{Tap: "tap" + n.name, MAC: byte(i + 1)}
		if err := n.boot(e); err != nil {
			return "", err
		}
	}
	stop := powerSwitch(nodes)
	defer stop()
	began := time.Now()
	if err := both(nodes, func(n *drbdNode) error { _, err := n.run(e, stackUp); return err }); err != nil {
		return "", err
	}
	active, err := firstServing(e, nodes)
	if err != nil {
		return "", err
	}
	formed := time.Since(began)

	e.netns = net.netns
	url := "iser://192.0.2.100:3260/" + haIQN + "/0"
	// On a machine that does much else the agents of the cluster take a minute and a half to move all.
	load, ledger, err := e.ledgerLoad("ledger", url, 4*time.Minute)
	if err != nil {
		return "", err
	}
	lost, other := nodes[active], nodes[1-active]
	if _, err := other.run(e, replicated); err != nil {
		return "", err
	}
	lost.Kill()
	cut := time.Now()
	if _, err := other.run(e, serving); err != nil {
		return "", err
	}
	moved := time.Since(cut)
	said, err := load()
	if err != nil {
		return "", err
	}
	if err := e.checkLedger(url, ledger); err != nil {
		return "", err
	}
	return fmt.Sprintf("served %.0f s after the start, again %.0f s after the power cut; %s; verified", formed.Seconds(), moved.Seconds(), said), nil
}

// firstServing waits until one of the nodes has the address, and says which.
func firstServing(e *Env, nodes [2]*drbdNode) (int, error) {
	type answer struct {
		node int
		err  error
	}
	first := make(chan answer, len(nodes))
	for i, n := range nodes {
		go func() {
			_, err := n.run(e, serving)
			first <- answer{i, err}
		}()
	}
	a := <-first
	return a.node, a.err
}

// powerSwitch does what fence_switch asks for in the guests, until stop.
func powerSwitch(nodes [2]*drbdNode) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			for i, asks := range nodes {
				victim := nodes[1-i]
				if _, err := os.Stat(filepath.Join(asks.Dir(), "off."+victim.name)); err == nil {
					victim.Kill()
					_ = intoGuest(asks.Guest, "is-off."+victim.name, "")
				}
			}
		}
	}()
	return func() { close(quit); <-ended }
}
