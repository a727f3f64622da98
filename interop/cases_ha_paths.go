package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"softiser/interop/internal/guest"
)

// What Linux makes of two targets of which one has
// the volume: dm-multipath by ALUA, the NVMe host by ANA.

const (
	pathsExpect     = "two targets of one group, kill -9 of the active one under I/O, promotion of the other, 20 times: no error, data verified"
	multipathExpect = pathsExpect + "; a reservation by mpathpersist holds"
)

var pathCases = []Case{
	{Name: "ha/multipath-tcp", Expect: multipathExpect, Kind: guest.Cluster, Fresh: true, Limit: pathLimit, Run: func(_ context.Context, e *Env) (string, error) { return haMultipath(e, "tcp") }},
	{Name: "ha/multipath-iser", Expect: multipathExpect, Kind: guest.Cluster, Fresh: true, Limit: pathLimit, Run: func(_ context.Context, e *Env) (string, error) { return haMultipath(e, "iser") }},
	{Name: "ha/ana-tcp", Expect: pathsExpect, Kind: guest.Cluster, Fresh: true, Limit: pathLimit, Run: func(_ context.Context, e *Env) (string, error) { return haANA(e, "tcp") }},
	{Name: "ha/ana-rdma", Expect: pathsExpect, Kind: guest.Cluster, Fresh: true, Limit: pathLimit, Run: func(_ context.Context, e *Env) (string, error) { return haANA(e, "rdma") }},
}

const (
	haRounds  = 20
	pathLimit = 90 * time.Minute
)

// haMultipath is open-iscsi and multipathd with the multipath.conf of docs/ha.
func haMultipath(e *Env, mode string) (string, error) {
	p, err := newHAPair(e)
	if err != nil {
		return "", err
	}
	conf, err := haFile("multipath.conf")
	if err != nil {
		return "", err
	}
	g, err := e.Guest()
	if err != nil {
		return "", err
	}
	if err := intoGuest(g, "multipath.conf", conf); err != nil {
		return "", err
	}
	if _, err := e.In("%s", strings.NewReplacer("@IFACE", map[string]string{"iser": "iser", "tcp": "default"}[mode], "@PORT", fmt.Sprint(p.nodes[0].port), "@IQN", haIQN, "@WWID", haWWID, "@SIZE", fmt.Sprint(haSize)).Replace(`
udev_up || die udev
modprobe -a dm_multipath dm_service_time scsi_dh_alua || die modules
cp /job/multipath.conf /etc/; multipathd -d >/job/multipathd.log 2>&1 &
[ @IFACE = default ] || siw_up || die siw
initiator || die iscsid
discover @PORT @IFACE >/tmp/found || die discovery
[ $(grep -c @IQN /tmp/found) = 2 ] || { cat /tmp/found; die not both portals; }
for kv in node.conn[0].timeo.noop_out_interval=2 node.conn[0].timeo.noop_out_timeout=5; do iscsiadm -m node -T @IQN -o update -n ${kv%=*} -v ${kv#*=} || die $kv; done
iscsiadm -m node -T @IQN -l >/tmp/login.log 2>&1 || { cat /tmp/login.log; die login; }
both_paths || die both paths
for s in /sys/class/iscsi_session/session*/device/target*/*/block/sd*; do
  d=/dev/${s##*/}; [ $(blockdev --getsize64 $d) = @SIZE ] || die $d has $(blockdev --getsize64 $d) bytes
  sg_inq $d | grep -q 'TPGS=1' || die $d: not implicit ALUA alone
done
# The host registers on all of its paths and reserves: it can write through whichever is active.
m=/dev/mapper/3@WWID
mkdir -p /etc/multipath; mpathpersist --out --register --param-sark=5afe $m >/tmp/pr 2>&1 || { cat /tmp/pr; die register; }
# The reservation goes through the map, to the active path: mpathpersist takes the first one in the map.
sg_persist -n -o -R -T 5 -K 5afe -d $m >/tmp/pr 2>&1 || { cat /tmp/pr; multipath -ll; die reserve; }
multipath -ll`)); err != nil {
		return "", err
	}
	return p.rounds(haWhat{device: "/dev/mapper/3" + haWWID, ready: "both_paths || die both paths", end: `
held=$(sg_persist -n -i -r -d /dev/mapper/3` + haWWID + ` 2>&1); [[ $held = *Key=0x5afe* ]] || die the reservation is gone: $held
iscsiadm -m node -u >/dev/null; quiet_kernel`})
}

// haANA is Linux' own multipathing of NVMe: controllers of two targets, one namespace.
func haANA(e *Env, transport string) (string, error) {
	p, err := newHAPair(e)
	if err != nil {
		return "", err
	}
	connect := "nvme_up " + transport + " || die module\n"
	for _, n := range p.nodes {
		connect += fmt.Sprintf("nvme connect -t %s -a $HOST -s %d -n %s -i 2 -c 1 -l -1 -k 5 || die connect %d\n", transport, n.port, haNQN, n.port)
	}
	if _, err := e.In("%sd=$(nvme_disk %s) || die disk; [ $(blockdev --getsize64 $d) = %d ] || die size; nvme_paths || die both paths", connect, haNQN, haSize); err != nil {
		return "", err
	}
	return p.rounds(haWhat{device: "$(nvme_disk " + haNQN + ")", ready: "nvme_paths || die both paths", end: "nvme disconnect -n " + haNQN + " >/dev/null && quiet_kernel"})
}

// haWhat are the scripts of one kind of host.
type haWhat struct {
	device string // the disk above the paths
	ready  string // waits until both paths are there, one of them active
	end    string
}

// rounds fails over under I/O, haRounds times, to the one node and to the other in turns.
// The node that was killed comes back as the standby before the next round.
func (p *haPair) rounds(w haWhat) (string, error) {
	longest := time.Duration(0)
	for r := range haRounds {
		active := r % 2
		out, err := underIO(p.e, "d="+w.device, 10, func() error { return p.failOver(active) })
		if err != nil {
			return "", fmt.Errorf("round %d: %w", r+1, err)
		}
		longest = max(longest, longestWrite(out))
		if err := p.start(active); err != nil {
			return "", fmt.Errorf("round %d: %w", r+1, err)
		}
		if _, err := p.e.In("%s", w.ready); err != nil {
			return "", fmt.Errorf("after round %d: %w", r+1, err)
		}
	}
	if _, err := p.e.In("%s", w.end); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d of %d rounds, longest write %.1f s", haRounds, haRounds, longest.Seconds()), p.stop()
}

// longestWrite is the longest completion that underIO's job has told, 0 if it has told none.
func longestWrite(out string) time.Duration {
	for line := range strings.Lines(out) {
		var ns int64
		if _, err := fmt.Sscanf(line, "longest write %d ns", &ns); err == nil {
			return time.Duration(ns)
		}
	}
	return 0
}
