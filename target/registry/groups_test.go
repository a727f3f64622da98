package registry

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/config"
	"softiser/initiator"
	"softiser/initiator/multipath"
	"softiser/initiator/nvmf"
	"softiser/internal/await"
	"softiser/internal/spc"
	"softiser/rdma/rdmatest"
	"softiser/target"
	"softiser/target/scsi"
)

// disk is storage that nodes share: what one of them opens, no other can meanwhile.
type disk struct {
	mu      sync.Mutex
	content *mem.Device
	holder  string
	broken  error         // of every open
	opens   chan struct{} // nil: opening does not wait
	flushes int
	given   int           // closed without a flush
	stalls  chan struct{} // nil: flushes and closings do not wait
}

func newDisk(t *testing.T) *disk {
	t.Helper()
	m, err := mem.Open(mem.Config{Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return &disk{content: m}
}

// open is the disk as a node has it.
func (d *disk) open(node string) (blockdev.Device, error) {
	if d.opens != nil {
		<-d.opens
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.broken != nil {
		return nil, d.broken
	}
	if d.holder != "" {
		return nil, fmt.Errorf("the disk is open on node %s: %w", d.holder, blockdev.ErrInUse)
	}
	d.holder = node
	return &opening{d.content, d}, nil
}

// Abandon counts, as the last flush of a file would be one of its Close.
func (o *opening) Abandon() {
	o.disk.mu.Lock()
	defer o.disk.mu.Unlock()
	o.disk.given++
}

// stall waits if the disk stalls.
func (d *disk) stall() {
	d.mu.Lock()
	stalls := d.stalls
	d.mu.Unlock()
	if stalls != nil {
		<-stalls
	}
}

func (d *disk) held() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.holder
}

type opening struct {
	*mem.Device
	disk *disk
}

func (o *opening) Flush() error {
	o.disk.mu.Lock()
	o.disk.flushes++
	o.disk.mu.Unlock()
	o.disk.stall()
	return o.Device.Flush()
}

func (o *opening) Close() error {
	o.disk.stall()
	o.disk.mu.Lock()
	defer o.disk.mu.Unlock()
	o.disk.holder = ""
	return nil
}

// clusterNode is a node of a cluster: a server with its registry.
type clusterNode struct {
	*Registry
	name string
	addr string // "": it does not listen
}

const haIQN, haNQN = "iqn.2026-11.test:disk0", "nqn.2026-11.test:disk0"

// newNode makes a node that shares a disk and the folder store with others. cntlid is where
// its controller identifiers begin.
func newNode(t *testing.T, d *disk, store, name string, cntlid int, serve bool) *clusterNode {
	t.Helper()
	text := nodeConfig(store, name, cntlid)
	return newNodeWith(t, text, name, serve, func(config.Volume) (blockdev.Device, error) { return d.open(name) })
}

// nodeConfig is the configuration of a node.
func nodeConfig(store, name string, cntlid int) string {
	return fmt.Sprintf(`
portals: [{listen: "127.0.0.1:0", group: %d}]
volumes:
  - {name: disk0, type: raw, path: /dev/none, size: 1MiB, wwid: 6000000000000000000000000000da7a, serial: S1, write_through: true}
targets:
  - {iqn: %q, luns: [{lun: 0, volume: disk0}]}
subsystems:
  - {nqn: %q, serial: SUB1, min_cntlid: %d, max_cntlid: %d, namespaces: [{nsid: 1, volume: disk0}]}
ha:
  node: %s
  store: %s
  portals: [{address: "192.0.2.1:3260", group: %d}]
  groups: [{name: g1, volumes: [disk0], fencing: node, grace: 50ms}]
`, cntlid/100, haIQN, haNQN, cntlid, cntlid+99, name, store, 3-cntlid/100)
}

// newNodeWith makes a node with a configuration, whose volumes are opened by open.
func newNodeWith(t *testing.T, text, name string, serve bool, open func(config.Volume) (blockdev.Device, error)) *clusterNode {
	t.Helper()
	return newNodeLogs(t, text, name, serve, zap.NewNop(), open)
}

// newNodeLogs is newNodeWith with a log.
func newNodeLogs(t *testing.T, text, name string, serve bool, log *zap.Logger, open func(config.Volume) (blockdev.Device, error)) *clusterNode {
	t.Helper()
	t.Setenv("RUNTIME_DIRECTORY", t.TempDir())
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	tc, err := ServerConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tc.Timeouts.Drain = time.Millisecond
	srv, err := target.New(tc)
	if err != nil {
		t.Fatal(err)
	}
	n := &clusterNode{name: name}
	n.Registry, err = New(cfg, Config{Server: srv, Log: log, Open: open})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	if serve {
		if err := srv.Listen(); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		over := make(chan struct{})
		go func() { defer close(over); srv.Serve(ctx) }() //nolint:errcheck // what it cut off does not matter
		t.Cleanup(func() { stop(); <-over })
		n.addr = srv.Addrs()[0]
	}
	if err := n.OpenVolumes(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

// want checks the state of the group, and why its last change has failed.
func (n *clusterNode) want(t *testing.T, state, reason string) {
	t.Helper()
	g := n.Status().Groups[0]
	if g.State != state || !strings.Contains(g.Error, reason) || reason == "" && g.Error != "" {
		t.Fatalf("node %s: group %+v; want %s, %q", n.name, g, state, reason)
	}
}

func (n *clusterNode) promote(t *testing.T) {
	t.Helper()
	if err := n.Promote(t.Context(), "g1"); err != nil {
		t.Fatal(err)
	}
	n.want(t, "active", "")
}

func (n *clusterNode) demote(t *testing.T) {
	t.Helper()
	if err := n.Demote(t.Context(), haIQN); err != nil {
		t.Fatal(err)
	}
	n.want(t, "standby", "")
}

// path is a session with the target of the node, as one of several paths.
func (n *clusterNode) path(t *testing.T) initiator.Config {
	t.Helper()
	c, err := initiator.ParseURL("iscsi://" + n.addr + "/" + haIQN + "/0")
	if err != nil {
		t.Fatal(err)
	}
	c.InitiatorName = "iqn.2026-11.test:host"
	return c
}

// lun opens the LUN of the node, whatever state it is in.
func (n *clusterNode) lun(t *testing.T) *initiator.LUN {
	t.Helper()
	c := n.path(t)
	c.Path = true
	l, err := initiator.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// command sends a CDB; unit attentions are over with it. It returns what came, or the sense.
func command(t *testing.T, l *initiator.LUN, cdb []byte, in int, out []byte) ([]byte, spc.Sense) {
	t.Helper()
	for {
		r := initiator.Request{Op: initiator.OpCDB, CDB: cdb, Buf: out}
		if in > 0 {
			r.Buf, r.DataIn = make([]byte, in), true
		}
		err := l.Do(t.Context(), &r)
		var se *spc.SenseError
		switch {
		case err == nil:
			return r.Buf[:int64(len(r.Buf))-r.Residual], spc.Sense{}
		case !errors.As(err, &se):
			t.Fatalf("command %x: %v", cdb, err)
		case se.Sense.Key != spc.KeyUnitAttention:
			return nil, se.Sense
		}
	}
}

func wantSense(t *testing.T, what string, s spc.Sense, k spc.Key, a spc.ASC) {
	t.Helper()
	if s.Key != k || s.ASC != a {
		t.Errorf("%s ends with %v/%v, want %v/%v", what, s.Key, s.ASC, k, a)
	}
}

// registered lists the keys that READ KEYS tells, and the generation.
func registered(t *testing.T, l *initiator.LUN) (keys []uint64, generation uint32) {
	t.Helper()
	b, s := command(t, l, spc.AppendPersistIn(nil, 0, 256), 256, nil)
	if s.Key != 0 || len(b) < 8 {
		t.Fatalf("READ KEYS: %x, %v/%v", b, s.Key, s.ASC)
	}
	for p := b[8:]; len(p) >= 8; p = p[8:] {
		keys = append(keys, binary.BigEndian.Uint64(p))
	}
	return keys, binary.BigEndian.Uint32(b)
}

// wantGroups checks what REPORT TARGET PORT GROUPS tells: states by group.
func wantGroups(t *testing.T, l *initiator.LUN, want map[uint16]byte) {
	t.Helper()
	b, s := command(t, l, spc.AppendReportTargetPortGroups(nil, false, 255), 255, nil)
	if s.Key != 0 || len(b) < 4 {
		t.Fatalf("REPORT TARGET PORT GROUPS: %x, %v/%v", b, s.Key, s.ASC)
	}
	got := map[uint16]byte{}
	for p := b[4:]; len(p) >= 8; p = p[8+4*int(p[7]):] {
		got[binary.BigEndian.Uint16(p[2:])] = p[0] & 0xF
	}
	if !maps.Equal(got, want) {
		t.Errorf("target port groups %v, want %v", got, want)
	}
}

// A discovery session learns of the portals of all nodes.
func TestRemotePortals(t *testing.T) {
	n := newNode(t, newDisk(t), t.TempDir(), "a", 100, true)
	l, err := initiator.Discover(t.Context(), n.path(t))
	if err != nil || len(l) != 1 || len(l[0].Portals) != 2 {
		t.Fatalf("Discover = %+v, %v", l, err)
	}
	if p := l[0].Portals[1]; p.Address != "192.0.2.1:3260" || p.Group != 2 {
		t.Errorf("the other node's portal is %+v", p)
	}
}

// Over RoCE it learns of those for RoCE alone, and over TCP of those for TCP.
func TestRemotePortalsOfRoCE(t *testing.T) {
	roce := netip.AddrPortFrom(rdmatest.RoCEAddr(), 3260).String()
	text := nodeConfig(t.TempDir(), "a", 100)
	text = strings.Replace(text, "group: 1}]", "group: 1}, {listen: \"roce://"+roce+"\", group: 3}]", 1)
	text = strings.Replace(text, "group: 2}]", "group: 2}, {address: roce://192.0.2.1, group: 4}]", 1)
	d := newDisk(t)
	n := newNodeWith(t, text, "a", true, func(config.Volume) (blockdev.Device, error) { return d.open("a") })
	over := n.path(t)
	over.Address, over.Transport, over.LocalAddress = roce, initiator.TransportRoCE, rdmatest.RoCEAddr()
	for _, c := range []initiator.Config{n.path(t), over} {
		l, err := initiator.Discover(t.Context(), c)
		if err != nil || len(l) != 1 || len(l[0].Portals) != 2 {
			t.Fatalf("%v: Discover = %+v, %v", c.Transport, l, err)
		}
		want := 1
		if c.Transport == initiator.TransportRoCE {
			want = 3
		}
		if own, other := l[0].Portals[0], l[0].Portals[1]; own.Address != c.Address || own.Group != want || other.Address != "192.0.2.1:3260" || other.Group != want+1 {
			t.Errorf("%v: %+v", c.Transport, l[0].Portals)
		}
	}
}

// A LUN on standby answers what needs no medium, with its device closed, and says what it
// is; what needs the medium is refused as SPC-4 §5.15.2.4.4 has it.
func TestStandbyLUN(t *testing.T) {
	d := newDisk(t)
	n := newNode(t, d, t.TempDir(), "a", 100, true)
	l := n.lun(t)
	if i := l.Info(); i.Size != 1<<20 || i.BlockSize != 512 {
		t.Errorf("standby tells %d bytes in blocks of %d", i.Size, i.BlockSize)
	}
	for name, c := range map[string]struct {
		cdb []byte
		in  int
	}{
		"INQUIRY":          {spc.AppendInquiry(nil, 96), 96},
		"VPD 83h":          {spc.AppendInquiryVPD(nil, 0x83, 255), 255},
		"VPD B2h":          {spc.AppendInquiryVPD(nil, 0xB2, 64), 64},
		"READ CAPACITY":    {spc.AppendReadCapacity16(nil, 32), 32},
		"REPORT LUNS":      {spc.AppendReportLUNs(nil, 0, 256), 256},
		"MODE SENSE":       {spc.AppendModeSense6(nil, false, 0, 0x3F, 0, 255), 255},
		"REPORT TPGS":      {spc.AppendReportTargetPortGroups(nil, false, 255), 255},
		"REQUEST SENSE":    {spc.AppendRequestSense(nil, false, 252), 252},
		"REPORT SUPPORTED": {spc.AppendReportOpcodes(nil, false, 0, 0, 0, 4096), 4096},
	} {
		if b, s := command(t, l, c.cdb, c.in, nil); s.Key != 0 || len(b) == 0 {
			t.Errorf("%s on standby: %d bytes, %v/%v", name, len(b), s.Key, s.ASC)
		}
	}
	for name, c := range map[string]struct {
		cdb []byte
		in  int
	}{
		"TEST UNIT READY": {spc.AppendTestUnitReady(nil), 0},
		"READ":            {spc.AppendRead(nil, 0, 1, false), 512},
		"SYNC CACHE":      {spc.AppendSyncCache(nil, 0, 0, false), 0},
		"PERSISTENT IN":   {spc.AppendPersistIn(nil, 0, 64), 64},
		"START STOP":      {spc.AppendStartStop(nil, false, false, true), 0},
	} {
		_, s := command(t, l, c.cdb, c.in, nil)
		wantSense(t, name, s, spc.KeyNotReady, spc.ASCAccessStandby)
	}
	if h := d.held(); h != "" {
		t.Errorf("the disk is open on node %s", h)
	}
}

// A group moves under a host that has paths to both nodes: what was written is there,
// registrations and reservations hold with their generation, and whoever was kept out is.
func TestFailover(t *testing.T) {
	d, store := newDisk(t), t.TempDir()
	a, b := newNode(t, d, store, "a", 100, true), newNode(t, d, store, "b", 200, true)
	a.promote(t)
	short, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := b.Promote(short, "g1"); err == nil || !strings.Contains(err.Error(), `node "a" holds`) {
		t.Fatalf("two owners: %v", err)
	}
	b.want(t, "standby", `node "a" holds`)

	v, err := multipath.Open(t.Context(), multipath.Config{NoPathRetry: time.Minute, CheckInterval: 20 * time.Millisecond, Paths: []multipath.Dialer{multipath.LUN(a.path(t)), multipath.LUN(b.path(t))}})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	data := bytes.Repeat([]byte{0xA5}, 4096)
	if err := v.Do(t.Context(), &initiator.Request{Op: initiator.OpWrite, Off: 8192, Buf: data}); err != nil {
		t.Fatal(err)
	}
	// Registered through the node that goes, without APTPL, for all ports; then reserved.
	l := a.lun(t)
	var p [24]byte
	binary.BigEndian.PutUint64(p[8:], 0x11)
	p[20] = 0x04 // ALL_TG_PT
	if _, s := command(t, l, spc.AppendPersistOut(nil, 0, 0, 24), 0, p[:]); s.Key != 0 {
		t.Fatalf("REGISTER: %v/%v", s.Key, s.ASC)
	}
	keys, generation := registered(t, l)
	if len(keys) != 2 { // through the ports of both nodes
		t.Errorf("keys %x on node a", keys)
	}
	wantGroups(t, l, map[uint16]byte{1: 0, 2: 2})

	a.demote(t)
	if h := d.held(); h != "" || d.flushes == 0 {
		t.Errorf("after demotion the disk is open on %q, %d flushes", h, d.flushes)
	}
	_, s := command(t, l, spc.AppendTestUnitReady(nil), 0, nil)
	wantSense(t, "TEST UNIT READY on the node that was", s, spc.KeyNotReady, spc.ASCAccessStandby)
	wantGroups(t, l, map[uint16]byte{1: 2}) // of the other node nothing is known for certain
	b.promote(t)
	got := make([]byte, 4096)
	if err := v.Do(t.Context(), &initiator.Request{Op: initiator.OpRead, Off: 8192, Buf: got}); err != nil || !bytes.Equal(got, data) {
		t.Errorf("after the move: %v, equal %v", err, bytes.Equal(got, data))
	}
	if keys, g := registered(t, b.lun(t)); len(keys) != 2 || keys[0] != 0x11 || g != generation {
		t.Errorf("keys %x, generation %d; want 11 twice, %d", keys, g, generation)
	}
	// What was registered through all ports counts through those of this node.
	if _, s := command(t, b.lun(t), spc.AppendPersistOut(nil, 1, 5, 24), 0, append(append([]byte{}, 0, 0, 0, 0, 0, 0, 0, 0x11), make([]byte, 16)...)); s.Key != 0 {
		t.Errorf("RESERVE on node b: %v/%v", s.Key, s.ASC)
	}
	// Back again: node a forgets what it knew.
	b.demote(t)
	a.promote(t)
	if _, g := registered(t, l); g != generation {
		t.Errorf("generation %d back on node a, want %d", g, generation)
	}
}

// A namespace is inaccessible on standby, and goes with the LUN.
func TestFailoverNamespace(t *testing.T) {
	d, store := newDisk(t), t.TempDir()
	a, b := newNode(t, d, store, "a", 100, true), newNode(t, d, store, "b", 200, true)
	b.promote(t)
	c, err := nvmf.ParseURL("nvme+tcp://" + a.addr + "/" + haNQN + "/1")
	if err != nil {
		t.Fatal(err)
	}
	c.Path = true
	ns, err := nvmf.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if i := ns.Info(); i.Size != 1<<20 {
		t.Errorf("standby tells %d bytes", i.Size)
	}
	read := func() error {
		return ns.Do(t.Context(), &initiator.Request{Op: initiator.OpRead, Buf: make([]byte, 4096)})
	}
	if err := read(); err == nil {
		t.Error("a namespace on standby was read")
	}
	b.demote(t)
	a.promote(t)
	if err := read(); err != nil {
		t.Error(err)
	}
}

// What cannot be opened leaves the group on standby with the reason, and free for others.
func TestFailedPromotion(t *testing.T) {
	d, store := newDisk(t), t.TempDir()
	a, b := newNode(t, d, store, "a", 100, false), newNode(t, d, store, "b", 200, false)
	d.broken = errors.New("wrong medium type")
	if err := a.Promote(t.Context(), "g1"); err == nil {
		t.Fatal("it was promoted")
	}
	a.want(t, "standby", "volume disk0: wrong medium type")
	d.broken = nil
	b.promote(t)
	// An open device that is in the way is named, too.
	b.demote(t)
	if _, err := d.open("c"); err != nil {
		t.Fatal(err)
	}
	if err := a.Promote(t.Context(), "g1"); !errors.Is(err, blockdev.ErrInUse) {
		t.Errorf("Promote = %v, want ErrInUse", err)
	}
	if err := a.Promote(t.Context(), "g7"); err == nil || !strings.Contains(err.Error(), `no group "g7"`) {
		t.Errorf("Promote of nothing = %v", err)
	}
}

// A promotion whose time is over takes the time that it needs to give up what it has got:
// its group is on standby afterwards, and another node may have it.
func TestPromotionOutOfTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, store := newDisk(t), t.TempDir()
		text := strings.NewReplacer(
			"targets:", "  - {name: disk1, type: raw, path: /dev/no, size: 1MiB, wwid: 6000000000000000000000000000da7b, serial: S2, write_through: true}\ntargets:",
			"luns: [", "luns: [{lun: 1, volume: disk1}, ",
			"volumes: [disk0", "volumes: [disk0, disk1").Replace(nodeConfig(store, "a", 100))
		ctx, cancel := context.WithCancel(t.Context())
		var a *clusterNode
		var user sync.WaitGroup
		a = newNodeWith(t, text, "a", false, func(v config.Volume) (blockdev.Device, error) {
			if v.Name == "disk0" {
				return d.open("a")
			}
			// The first one is in use, and the time is over.
			dev := members(a.common, []string{"disk0"})[0].dev
			l := new(blockdev.Lease)
			if err := dev.LeaseRead(l, 0, 512, blockdev.Wait); err != nil {
				t.Error(err)
			}
			user.Go(func() {
				await.True(t, "the device is given up", func() bool { return !dev.Attached() })
				l.Release()
			})
			cancel()
			return nil, errors.New("slow to say no")
		})
		err := a.Promote(ctx, "g1")
		user.Wait()
		if err == nil || !strings.Contains(err.Error(), "slow to say no") {
			t.Errorf("Promote = %v", err)
		}
		a.want(t, "standby", "slow to say no")
		newNode(t, d, store, "b", 200, false).promote(t)
	})
}

// An owner that another node has replaced finds it within ownerCheck, and closes its
// devices without flushing them.
func TestLostGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := t.TempDir()
		old, now := newDisk(t), newDisk(t) // each node's own: nothing of the other's is in the way
		a, b := newNode(t, old, store, "a", 100, false), newNode(t, now, store, "b", 200, false)
		a.promote(t)
		// What a file server does that takes a client for dead.
		if err := os.Remove(filepath.Join(store, "g1.lock")); err != nil {
			t.Fatal(err)
		}
		b.promote(t)
		time.Sleep(2 * ownerCheck) // in the bubble's time
		a.want(t, "standby", `node "b" is owner 2`)
		if h := old.held(); h != "" || old.flushes != 0 || old.given != 1 {
			t.Errorf("the disk is open on %q, %d flushes, given up %d times", h, old.flushes, old.given)
		}
		b.want(t, "active", "")
	})
}

// A demotion that waits for storage ends when its time is over, with the group stuck, and goes on when storage
// answers.
func TestDemotionStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, store := newDisk(t), t.TempDir()
		a, b := newNode(t, d, store, "a", 100, false), newNode(t, d, store, "b", 200, false)
		a.promote(t)
		d.stalls = make(chan struct{})
		for _, why := range []string{"does not answer", "group g1 is stuck"} { // asked again
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			if err := a.Demote(ctx, "g1"); err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("Demote = %v, want %q", err, why)
			}
			cancel()
			a.want(t, "stuck", "does not answer")
		}
		close(d.stalls)
		synctest.Wait()
		a.want(t, "standby", "")
		b.promote(t)
	})
}

// A node that starts with groups of which another node still has one says who that is, gets its others
// meanwhile, and that one when it is given up.
func TestStartActive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, store := newDisk(t), t.TempDir()
		a := newNode(t, d, store, "a", 100, false)
		a.promote(t)
		var groups, volumes, luns strings.Builder
		for i := 1; i < 6; i++ {
			fmt.Fprintf(&volumes, "  - {name: disk%d, type: raw, path: /dev/no%d, size: 1MiB, wwid: 6000000000000000000000000000da8%d, serial: S%d, write_through: true}\n", i, i, i, i)
			fmt.Fprintf(&luns, "{lun: %d, volume: disk%d}, ", i, i)
			fmt.Fprintf(&groups, "{name: g%d, volumes: [disk%d], fencing: node, start: active}, ", i+1, i)
		}
		text := strings.NewReplacer("targets:", volumes.String()+"targets:", "luns: [", "luns: ["+luns.String(),
			"groups: [", "groups: ["+groups.String(), "grace: 50ms", "start: active").Replace(nodeConfig(store, "b", 200))
		more := map[string]*disk{"disk0": d}
		for i := 1; i < 6; i++ {
			more[fmt.Sprintf("disk%d", i)] = newDisk(t)
		}
		core, logs := observer.New(zap.ErrorLevel)
		began := time.Now()
		b := newNodeLogs(t, text, "b", false, zap.New(core), func(v config.Volume) (blockdev.Device, error) { return more[v.Name].open("b") })
		if d := time.Since(began); d > 0 {
			t.Errorf("everything else was served %v after the start", d)
		}
		for name, other := range more {
			if other.held() != map[bool]string{true: "a", false: "b"}[name == "disk0"] {
				t.Errorf("%s is open on %q", name, other.held())
			}
		}
		for _, g := range b.Status().Groups {
			if g.Name == "g1" && (g.State != "standby" || !strings.Contains(g.Error, `node "a" holds the lock of group g1`)) {
				t.Errorf("%+v", g)
			}
		}
		time.Sleep(time.Minute) // in the bubble's time
		if l := logs.All(); len(l) != 1 || !strings.Contains(fmt.Sprint(l[0].ContextMap()["error"]), `node "a" holds the lock of group g1`) {
			t.Errorf("logged: %v", l)
		}
		if s := b.StandbyGroups(); len(s) > 0 {
			t.Errorf("%v would stay on standby", s)
		}
		select {
		case <-b.Started():
			t.Error("a group waits, and the node has started")
		default:
		}
		a.demote(t)
		<-b.Started()
		for _, g := range b.Status().Groups {
			if g.State != "active" {
				t.Errorf("%+v", g)
			}
		}
	})
}

// startsActive is a configuration of node b, whose group is its own from the start on.
func startsActive(store string) string {
	return strings.Replace(nodeConfig(store, "b", 200), "grace: 50ms", "grace: 50ms, start: active", 1)
}

// A group that waits for another node, and is demoted, waits no more.
func TestStartActiveDemoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, store := newDisk(t), t.TempDir()
		a := newNode(t, d, store, "a", 100, false)
		a.promote(t)
		b := newNodeWith(t, startsActive(store), "b", false, func(config.Volume) (blockdev.Device, error) { return d.open("b") })
		b.want(t, "standby", `node "a" holds`)
		b.demote(t)
		<-b.Started()
		if s := b.StandbyGroups(); len(s) != 1 {
			t.Errorf("on standby: %v", s)
		}
		a.demote(t)
		time.Sleep(time.Minute) // in the bubble's time
		b.want(t, "standby", "")
	})
}

// Storage that does not answer at the start holds up its group alone, which says what it waits for and is
// active when that answers, or on standby if it was given up meanwhile.
func TestStartActiveStalls(t *testing.T) {
	for _, given := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d, store := newDisk(t), t.TempDir()
			d.opens = make(chan struct{})
			b := newNodeWith(t, startsActive(store), "b", false, func(config.Volume) (blockdev.Device, error) { return d.open("b") })
			b.want(t, "promoting", "")
			time.Sleep(tellPatience) // in the bubble's time
			synctest.Wait()
			b.want(t, "promoting", "volume disk0 (/dev/none) does not answer")
			if given {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				if err := b.Demote(ctx, "g1"); err == nil || !strings.Contains(err.Error(), "group g1 is promoting, and waits for volume disk0 (/dev/none)") {
					t.Errorf("Demote = %v", err)
				}
			}
			close(d.opens)
			<-b.Started()
			if given {
				b.want(t, "standby", "context canceled")
			} else {
				b.want(t, "active", "")
			}
		})
	}
}

// A promotion that waits for storage ends when its time is over, with the group stuck, and is taken back when
// storage answers.
func TestPromotionStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, store := newDisk(t), t.TempDir()
		a, b := newNode(t, d, store, "a", 100, false), newNode(t, d, store, "b", 200, false)
		d.opens = make(chan struct{})
		ask := func(do func(context.Context, string) error, why string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if err := do(ctx, "g1"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), why) {
				t.Errorf("%v, want %q", err, why)
			}
		}
		ask(a.Promote, "group g1 is not promoted: volume disk0 (/dev/none) does not answer")
		a.want(t, "stuck", "disk0")
		ask(a.Demote, "group g1 is stuck, and waits for volume disk0")
		close(d.opens)
		synctest.Wait()
		a.want(t, "standby", "deadline")
		if h := d.held(); h != "" {
			t.Errorf("the disk is open on %q", h)
		}
		b.promote(t)
	})
}

// Groups of one target are promoted at once: one whose storage does not answer holds up no other. What a reload
// shows of the others does not depend on it, either.
func TestPromotionStallsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, other, store := newDisk(t), newDisk(t), t.TempDir()
		text := strings.NewReplacer(
			"targets:", "  - {name: disk1, type: raw, path: /dev/no, size: 1MiB, wwid: 6000000000000000000000000000da7b, serial: S2, write_through: true}\ntargets:",
			"luns: [", "luns: [{lun: 1, volume: disk1}, ",
			"groups: [", "groups: [{name: g2, volumes: [disk1], fencing: node}, ").Replace(nodeConfig(store, "a", 100))
		d.opens = make(chan struct{})
		a := newNodeWith(t, text, "a", false, func(v config.Volume) (blockdev.Device, error) {
			if v.Name == "disk1" {
				return other.open("a")
			}
			return d.open("a")
		})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := a.Promote(ctx, haIQN); err == nil || !strings.Contains(err.Error(), "group g1 is not promoted") || strings.Contains(err.Error(), "g2") {
			t.Errorf("Promote = %v", err)
		}
		for _, g := range a.Status().Groups {
			if want := map[string]string{"g1": "stuck", "g2": "active"}[g.Name]; g.State != want {
				t.Errorf("%+v, want %s", g, want)
			}
		}
		for range 20 {
			if end, err := a.groups.byName["g2"].begin(ctx); err != nil { // whose time is over
				t.Fatal(err)
			} else {
				end()
			}
		}
		close(d.opens)
	})
}

// A record of the owner that cannot be read is the store's fault, which the error names, for a group that is
// active as well.
func TestStoreStalls(t *testing.T) {
	d, store := newDisk(t), t.TempDir()
	a := newNode(t, d, store, "a", 100, false)
	owner := filepath.Join(store, "g1.owner")
	hang := func(do func(context.Context, string) error, state string) {
		t.Helper()
		if err := os.Remove(owner); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(owner, 0o600); err != nil { // whoever opens it waits
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		failed := make(chan error, 1)
		go func() { failed <- do(ctx, "g1") }()
		var f *os.File
		await.True(t, "the record is read", func() (reads bool) {
			var err error
			f, err = os.OpenFile(owner, os.O_WRONLY|syscall.O_NONBLOCK, 0)
			return err == nil
		})
		cancel()
		if err := <-failed; err == nil || !strings.Contains(err.Error(), "group g1") || !strings.Contains(err.Error(), "ha.store "+store) {
			t.Errorf("%v", err)
		}
		a.want(t, state, map[bool]string{true: "ha.store " + store + " does not answer"}[state == "stuck"])
		if err := os.Remove(owner); err != nil {
			t.Error(err)
		}
		f.Close() // an empty record
	}
	hang(a.Promote, "stuck")
	await.True(t, "the promotion has ended", func() bool { return a.Status().Groups[0].State == "standby" })
	a.promote(t)
	hang(a.Promote, "active") // is it, still?
}

// A group that is lost while its storage does not answer is stuck, and free when it does.
func TestLostGroupStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := t.TempDir()
		old, now := newDisk(t), newDisk(t)
		a, b := newNode(t, old, store, "a", 100, false), newNode(t, now, store, "b", 200, false)
		a.promote(t)
		old.stalls = make(chan struct{})
		// What a file server does that takes a client for dead.
		if err := os.Remove(filepath.Join(store, "g1.lock")); err != nil {
			t.Fatal(err)
		}
		b.promote(t)
		time.Sleep(2*ownerCheck + lostPatience + stallPatience) // in the bubble's time
		a.want(t, "stuck", "does not answer")
		close(old.stalls)
		synctest.Wait()
		a.want(t, "standby", `node "b" is owner 2`)
		if old.flushes != 0 || old.given != 1 {
			t.Errorf("%d flushes, given up %d times", old.flushes, old.given)
		}
	})
}

// A promotion that has got the store only when nobody waits for it any more does not take place.
func TestLatePromotion(t *testing.T) {
	d, store := newDisk(t), t.TempDir()
	a := newNode(t, d, store, "a", 100, false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // a group that is free may be begun with although the time is over
		if err := a.Promote(ctx, "g1"); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if a.Status().Groups[0].State != "standby" || d.held() != "" {
		t.Errorf("%+v, the disk is open on %q", a.Status().Groups[0], d.held())
	}
}

// An owner whose record has vanished goes on with the volumes.
func TestRecordOfOwnerIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, store := newDisk(t), t.TempDir()
		a := newNode(t, d, store, "a", 100, false)
		a.promote(t)
		if err := os.Remove(filepath.Join(store, "g1.owner")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * ownerCheck) // in the bubble's time
		a.want(t, "active", "")
		if err := a.Promote(t.Context(), "g1"); err == nil || !strings.Contains(err.Error(), "g1.owner is gone") {
			t.Errorf("Promote = %v", err)
		}
		if err := a.Demote(t.Context(), "g1"); err == nil || d.held() != "" {
			t.Errorf("Demote = %v, the disk is open on %q", err, d.held())
		}
		a.promote(t)
	})
}

// A target that ends in an orderly way leaves the group to others.
func TestShutdownYields(t *testing.T) {
	d, store := newDisk(t), t.TempDir()
	a, b := newNode(t, d, store, "a", 100, false), newNode(t, d, store, "b", 200, false)
	a.promote(t)
	a.Close()
	b.promote(t)
}

// A LUN that a reload adds to a group that is active has the access states that the file says.
func TestReloadActiveGroup(t *testing.T) {
	d, store := newDisk(t), t.TempDir()
	text := nodeConfig(store, "a", 100)
	a := newNodeWith(t, text, "a", false, func(config.Volume) (blockdev.Device, error) { return d.open("a") })
	a.promote(t)
	file := filepath.Join(t.TempDir(), "c.yaml")
	text = strings.Replace(text, "subsystems:", "  - {iqn: iqn.2026-11.test:further, luns: [{lun: 0, volume: disk0, alua: active-non-optimized}]}\nsubsystems:", 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a.load = func() (*config.Config, error) { return config.Load(file) }
	changes, _, err := a.Reload(t.Context(), false)
	if err != nil || len(changes) != 2 || changes[0].Error+changes[1].Error != "" {
		t.Fatalf("%+v, %v", changes, err)
	}
	for _, x := range a.Status().Targets {
		want := scsi.ActiveOptimized
		if x.Name != haIQN {
			want = scsi.ActiveNonOptimized
		}
		if got := x.LUNs[0].Access; len(got) != 1 || got[1] != want {
			t.Errorf("%s: %v, want %v", x.Name, got, want)
		}
	}
}

// A volume whose state cannot be read when it comes to an active group is not left open behind a path
// that says it is active.
func TestJoinWithBadState(t *testing.T) {
	d, other, store := newDisk(t), newDisk(t), t.TempDir()
	text := strings.NewReplacer(
		"targets:", "  - {name: disk1, type: raw, path: /dev/no, size: 1MiB, wwid: 6000000000000000000000000000da7b, serial: S2, write_through: true}\ntargets:",
		"volumes: [disk0", "volumes: [disk0, disk1").Replace(nodeConfig(store, "a", 100))
	a := newNodeWith(t, text, "a", false, func(v config.Volume) (blockdev.Device, error) {
		if v.Name == "disk1" {
			return other.open("a")
		}
		return d.open("a")
	})
	a.promote(t)
	bad := filepath.Join(store, "lu-6000000000000000000000000000da7b.json")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := a.Volume("disk1")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.AddLUN(t.Context(), haIQN, 1, v); err == nil || !strings.Contains(err.Error(), bad) {
		t.Fatalf("AddLUN = %v", err)
	}
	if h := other.held(); h != "" {
		t.Errorf("the disk is open on %q", h)
	}
	access := func() scsi.AccessState { return a.Status().Targets[0].LUNs[1].Access[1] }
	if got := access(); got != scsi.Unavailable {
		t.Errorf("the LUN is %v", got)
	}
	if err := os.Remove(bad); err != nil {
		t.Fatal(err)
	}
	if err := a.RemoveLUN(t.Context(), haIQN, 1); err != nil {
		t.Fatal(err)
	}
	if err := a.AddLUN(t.Context(), haIQN, 1, v); err != nil || access() != scsi.ActiveOptimized {
		t.Errorf("with another state: %v, %v", err, access())
	}
}
