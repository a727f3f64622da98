package target_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/blockdev/file"
	"softiser/blockdev/mem"
	"softiser/internal/await"
	"softiser/internal/iscsi"
	"softiser/internal/spc"
	"softiser/lvm"
	"softiser/lvm/vg"
	"softiser/target"
	"softiser/target/scsi"
)

// Storage that stalls: it neither fails nor succeeds for as long as a test wants.

const (
	stalledTarget = "iqn.2026-11.softiser:stalled"
	otherTarget   = "iqn.2026-11.softiser:other"
	stalledSize   = 16 << 20
)

// stallable is a volume whose storage can be made to stall.
type stallable struct {
	blockdev.Device
	below *faulty.Device // what stalls: the volume itself, or the disk below it
	close func() error
}

// stall makes operations stall until release is called.
func (s *stallable) stall(op faulty.Op) (release func()) {
	gate := make(chan struct{})
	s.below.SetRules(faulty.Rule{Op: op, Hold: gate})
	return func() {
		s.below.SetRules()
		close(gate)
	}
}

func openStallable(t *testing.T, backend string) *stallable {
	t.Helper()
	dir := t.TempDir()
	var s stallable
	switch backend {
	case "mem", "file":
		var lower blockdev.Device
		var err error
		if backend == "mem" {
			lower, err = mem.Open(mem.Config{Name: t.Name(), Size: stalledSize})
		} else {
			lower, err = file.Open(file.Config{Path: filepath.Join(dir, "v"), Size: stalledSize})
		}
		if err != nil {
			t.Fatal(err)
		}
		s.below = faulty.New(lower, 1)
		s.Device, s.close = s.below, s.below.Close
	default:
		m := &lvm.Manager{Config: lvm.Config{Config: vg.Config{LockDir: dir + "/lock", ArchiveDir: "-", BackupDir: "-"},
			Open: func(path string) (blockdev.Device, error) {
				d, err := file.Open(file.Config{Path: path})
				if err != nil {
					return nil, err
				}
				s.below = faulty.New(d, 1)
				return s.below, nil
			}}}
		spec := lvm.Spec{VG: "vg0", LV: "v", Devices: []string{filepath.Join(dir, "pv.img")}, DeviceSize: 128 << 20, Size: stalledSize}
		if backend == "thin" {
			spec.Pool, spec.PoolSize = "pool", 32<<20
		}
		v, err := m.Open(spec)
		if err != nil {
			t.Fatal(err)
		}
		if backend == "snapshot" {
			if err := m.Group("vg0").Snapshot(t.Context(), lvm.SnapshotOptions{Origin: "v", Name: "snap", Extents: 8}, "lvcreate"); err != nil {
				t.Fatal(err)
			}
		}
		s.Device, s.close = v, func() error { return errors.Join(v.Close(), m.Close()) }
	}
	return &s
}

// stalls is a server with a volume that can stall, LUN 0, and others beside it.
type stalls struct {
	*target.Server
	vol     *stallable
	addr    string
	closers []func() error
}

func serveStallable(t *testing.T, backend string, change func(*target.Config)) *stalls {
	t.Helper()
	return serveStallableBy(t, 2, backend, change)
}

// serveStallableBy is serveStallable with so many workers for the volume.
func serveStallableBy(t *testing.T, workers int, backend string, change func(*target.Config)) *stalls {
	t.Helper()
	s := &stalls{vol: openStallable(t, backend)}
	cfg := target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0"}}}
	if change != nil {
		change(&cfg)
	}
	var err error
	if s.Server, err = target.New(cfg); err != nil {
		t.Fatal(err)
	}
	s.closers = []func() error{s.vol.close}
	for _, iqn := range []string{stalledTarget, otherTarget} {
		healthy, err := mem.Open(mem.Config{Name: iqn, Size: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		s.closers = append(s.closers, healthy.Close)
		luns := []target.LUN{{Name: "healthy", LUConfig: scsi.LUConfig{LUN: 1, Volume: healthy}}}
		if iqn == stalledTarget {
			luns = append(luns, target.LUN{Name: "sick", LUConfig: scsi.LUConfig{LUN: 0, Volume: s.vol.Device, Workers: workers}})
		}
		if err := s.AddTarget(target.Target{Name: iqn, LUNs: luns}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	s.addr = s.Addrs()[0]
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background()) }()
	t.Cleanup(func() {
		s.Shutdown(over())               //nolint:errcheck // initiators are cut off
		s.Shutdown(context.Background()) //nolint:errcheck // until it is over, whatever a test has done
		<-served
		for _, f := range s.closers {
			if err := f(); err != nil {
				t.Errorf("closing a volume: %v", err)
			}
		}
	})
	return s
}

// stallingCommand is a command and what has to stall that it does.
type stallingCommand struct {
	name string
	op   faulty.Op
	cdb  []byte
	data []byte
	n    int
}

func block(seed byte) []byte { return bytes.Repeat([]byte{seed, 0x5a}, 2048) }

func stallingCommands() []stallingCommand {
	unmap := spc.AppendUnmapList(nil, []spc.Range{{LBA: 0, Blocks: 128}})
	return []stallingCommand{
		{"READ", faulty.Read, spc.AppendRead(nil, 0, 8, false), nil, 4096},
		{"WRITE", faulty.Lease | faulty.Write, spc.AppendWrite(nil, 0, 8, false), block(1), 0},
		{"FUA", faulty.Flush, spc.AppendWrite(nil, 0, 8, true), block(2), 0},
		{"SYNCHRONIZE CACHE", faulty.Flush, spc.AppendSyncCache(nil, 0, 0, false), nil, 0},
		{"WRITE SAME", faulty.Write | faulty.Discard | faulty.Lease, spc.AppendWriteSame16(nil, 0, 64, 0), block(3)[:512], 0},
		{"UNMAP", faulty.All &^ faulty.Read, spc.AppendUnmap(nil, uint16(len(unmap))), unmap, 0},
		{"COMPARE AND WRITE", faulty.Read, spc.AppendCompareAndWrite(nil, 0, 1, false), append(block(9)[:512:512], block(4)[:512]...), 0},
	}
}

// TestStalls: each kind of command, stalled for as long as the test likes: what goes on meanwhile, what waits, and how it ends.
func TestStalls(t *testing.T) {
	for _, backend := range []string{"mem", "file", "linear", "thin", "snapshot"} {
		for _, c := range stallingCommands() {
			if backend == "mem" && c.op == faulty.Flush || (backend == "linear" || backend == "thin") && c.name == "UNMAP" {
				continue // nothing to wait for
			}
			t.Run(backend+"/"+c.name, func(t *testing.T) { testStall(t, backend, c) })
		}
	}
}

// testStall has two commands stall, as many as there are workers, and others queued
// behind them.
func testStall(t *testing.T, backend string, c stallingCommand) {
	workers := 2
	if c.name == "FUA" || c.name == "WRITE" && backend == "mem" { // what makes data durable may have twice as many
		workers = 1
	}
	s := serveStallableBy(t, workers, backend, nil)
	old := block(9)
	mine := mustLogIn(t, s.addr, stalledTarget, 1, 0, 1)
	for lba := uint64(0); lba < 256; lba += 128 { // the tables below know these blocks
		mine.do(0, spc.AppendWrite(nil, lba, 8, false), old, 0).good()
	}
	mine.do(0, spc.AppendSyncCache(nil, 0, 0, false), nil, 0).good()
	peer := mustLogIn(t, s.addr, stalledTarget, 2, 0, 1)
	if c.op == faulty.Flush { // there is something to be flushed, also below tables
		peer.do(0, spc.AppendWrite(nil, 1024, 8, false), old, 0).good()
	}

	release := s.vol.stall(c.op)
	defer func() { release() }()
	stalled := mine.start(0, c.cdb, c.data, c.n)
	await.True(t, "storage has the command", func() bool { return s.vol.below.Held() > 0 })
	second := peer.start(0, c.cdb, c.data, c.n)
	// It may wait for the first one elsewhere than in storage.
	inStorage := (backend == "mem" || backend == "file") && c.name != "COMPARE AND WRITE"
	if inStorage {
		await.True(t, "storage has the second command", func() bool { return s.vol.below.Held() > 1 })
	}
	queued := peer.start(0, c.cdb, c.data, c.n)

	// What needs no storage, and what needs other storage, goes on: in these sessions,
	// in new ones, for the administrator.
	for _, p := range []*plain{mine, peer, mustLogIn(t, s.addr, stalledTarget, 3, 0, 1)} {
		p.ping()
		p.do(0, make([]byte, 6), nil, 0).good()
		p.do(0, spc.AppendInquiry(nil, 64), nil, 64).good()
		p.do(0, spc.AppendReadCapacity16(nil, 32), nil, 32).good()
		p.do(1, spc.AppendWrite(nil, 0, 8, true), old, 0).good()
		p.do(1, spc.AppendRead(nil, 0, 8, false), nil, 4096).good()
	}
	mustLogIn(t, s.addr, otherTarget, 4, 1).do(1, spc.AppendRead(nil, 0, 8, false), nil, 4096).good()
	if st := s.Status(); st.Targets[0].LUNs[0].Stats.Tasks < 3 {
		t.Errorf("%d commands hold the volume in status", st.Targets[0].LUNs[0].Stats.Tasks)
	}

	// A command that storage does not have yet ends with its abort; one that it has can
	// still take effect, so its abort is answered when it cannot any more.
	if code := peer.manage(iscsi.AbortTask, 0, queued).response(); code != 0 {
		t.Errorf("ABORT TASK of a queued command: response %d", code)
	}
	abort := peer.manage(iscsi.AbortTask, 0, second)

	// The administrator's and a peer's ways to end it wait, as long as they like.
	for what, a := range map[string]*answer{"the stalled command": stalled, "another": second, "its abort": abort} {
		if what == "the stalled command" || inStorage {
			if peer.ping(); !a.pending() {
				r := a.wait()
				t.Errorf("%s is answered during the stall: %v % x", what, r.Opcode(), r.BHS[:4])
			}
		}
	}
	reset := mine.manage(iscsi.LogicalUnitReset, 0, nil)
	if err := s.RemoveLUN(over(), stalledTarget, 0); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "LUN 0") {
		t.Errorf("RemoveLUN during the stall: %v", err)
	}
	mine.ping()
	if !reset.pending() || !stalled.pending() {
		t.Error("LOGICAL UNIT RESET is answered while storage has a command")
	}
	mine.do(1, spc.AppendRead(nil, 8, 8, false), nil, 4096)
	bye := mine.logout()

	release()
	release = func() {}
	if code := abort.response(); code > 1 { // 1: it had just ended
		t.Errorf("ABORT TASK: response %d", code)
	}
	// Whoever logs out takes its answers with it.
	if code := bye.response(); code != iscsi.LogoutClosed {
		t.Errorf("logout: response %d", code)
	}
	if !reset.pending() && reset.response() != 0 {
		t.Errorf("LOGICAL UNIT RESET: response %d", reset.response())
	}
	if !stalled.pending() {
		t.Error("an aborted command was answered")
	}
	if !second.pending() || !queued.pending() {
		if status, _ := second.status(); status != 0 || abort.response() == 0 {
			t.Error("an aborted command was answered")
		}
	}
	if err := s.RemoveLUN(context.Background(), stalledTarget, 0); err != nil {
		t.Errorf("RemoveLUN after the stall: %v", err)
	}
	peer.ping()
	peer.do(1, spc.AppendRead(nil, 8, 8, false), nil, 4096)
}

// TestStallEnds: what was waited for is done when storage goes on, and says so; nobody has
// to ask again.
func TestStallEnds(t *testing.T) {
	for _, backend := range []string{"file", "linear", "thin", "snapshot"} {
		t.Run(backend, func(t *testing.T) {
			s := serveStallable(t, backend, nil)
			p := mustLogIn(t, s.addr, stalledTarget, 1, 0)
			release := s.vol.stall(faulty.All)
			var writes []*answer
			for i := range byte(6) {
				writes = append(writes, p.start(0, spc.AppendWrite(nil, uint64(i)*512, 8, i%2 == 0), block(i), 0))
			}
			flush := p.start(0, spc.AppendSyncCache(nil, 0, 0, false), nil, 0)
			read := p.start(0, spc.AppendRead(nil, 8192, 8, false), nil, 4096)
			await.True(t, "storage has a command", func() bool { return s.vol.below.Held() > 0 })
			p.ping()
			release()
			for _, w := range append(writes, flush, read) {
				w.good()
			}
			for i := range byte(6) {
				if got := p.do(0, spc.AppendRead(nil, uint64(i)*512, 8, false), nil, 4096).good(); !bytes.Equal(got, block(i)) {
					t.Errorf("what WRITE %d has written is not there", i)
				}
			}
		})
	}
}

// TestStallOutlastsTimeouts: none of the target's time-outs takes storage that does not
// answer for an initiator that does not.
func TestStallOutlastsTimeouts(t *testing.T) {
	s := serveStallable(t, "file", func(c *target.Config) {
		c.Timeouts.NopInterval, c.Timeouts.DataOut = 50*time.Millisecond, 10*time.Millisecond
	})
	release := s.vol.stall(faulty.All)
	defer func() { release() }()
	p := mustLogIn(t, s.addr, stalledTarget, 1, 1)
	p.ready(0)
	w := p.start(0, spc.AppendWrite(nil, 0, 8, false), block(1), 0)
	fresh := mustLogIn(t, s.addr, stalledTarget, 2, 0)
	r := fresh.start(0, spc.AppendRead(nil, 8, 8, false), nil, 4096)
	await.True(t, "the target has looked for what is owed, and asks whether its initiators are there", func() bool {
		return p.pinged() > 0 && fresh.pinged() > 0
	})
	p.ping()
	fresh.ping()
	if !w.pending() || !r.pending() {
		t.Error("a stalled command was answered")
	}
	release()
	release = func() {}
	w.good()
	r.good()
}

// TestStallAndLoginAgain: an initiator whose connection ends during a stall comes in
// again at once through another port of its own; through the same one, whose old nexus
// still has commands in storage, when those have ended.
func TestStallAndLoginAgain(t *testing.T) {
	s := serveStallable(t, "file", func(c *target.Config) { c.Timeouts.Login = time.Second })
	p := mustLogIn(t, s.addr, stalledTarget, 1, 0)
	release := s.vol.stall(faulty.All)
	defer func() { release() }()
	p.start(0, spc.AppendRead(nil, 0, 8, false), nil, 4096)
	await.True(t, "storage has the command", func() bool { return s.vol.below.Held() > 0 })
	mustLogIn(t, s.addr, stalledTarget, 2, 1)
	if _, status := logIn(t, s.addr, stalledTarget, 1); status != iscsi.LoginUnavailable {
		t.Errorf("the same port during the stall: %v", status)
	}
	release()
	release = func() {}
	mustLogIn(t, s.addr, stalledTarget, 1, 0).do(0, spc.AppendRead(nil, 0, 8, false), nil, 4096).good()
}
