package scsi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/await"
	"softiser/internal/spc"

	"softiser/blockdev/faulty"
)

func (r *rig) manage(n *Nexus, f TMF, lun uint16, t *Task) TMFResponse {
	r.t.Helper()
	done := make(chan TMFResponse, 1)
	r.dev.Manage(n, f, spc.EncodeLUN(lun), t, func(x TMFResponse) { done <- x })
	select {
	case x := <-done:
		return x
	case <-time.After(time.Minute):
		r.t.Fatalf("task management function %d does not end", f)
		return 0
	}
}

func (r *rig) heldWrite(n *Nexus, lba uint64) *call {
	return r.start(n, 0, spc.AppendWrite(nil, lba, 8, false), make([]byte, 4096), 0, held)
}

func TestAbortTask(t *testing.T) {
	r := newRig(t, Config{})
	a, b := r.nx[0], r.nx[1]
	c := r.heldWrite(a, 0)
	// Only the own nexus can abort a task.
	if x := r.manage(b, AbortTask, 0, &c.Task); x != TMFNoTask {
		t.Errorf("abort from another nexus: %v", x)
	}
	if x := r.manage(a, AbortTask, 0, &c.Task); x != TMFComplete {
		t.Errorf("abort: %v", x)
	}
	select {
	case <-c.done:
	default:
		t.Error("the response came before the task had ended")
	}
	if got := r.finish(c); !got.silent {
		t.Error("an aborted task sends status")
	}
	if x := r.manage(a, AbortTask, 0, nil); x != TMFNoTask {
		t.Errorf("abort of nothing: %v", x)
	}
	if x := r.manage(a, AbortTask, 9, nil); x != TMFNoLUN {
		t.Errorf("abort on a LUN that does not exist: %v", x)
	}
	if x := r.manage(a, ClearACA, 0, nil); x != TMFNotSupported {
		t.Errorf("CLEAR ACA: %v", x)
	}
}

func TestAbortTaskSet(t *testing.T) {
	r := newRig(t, Config{})
	mine := []*call{r.heldWrite(r.nx[0], 0), r.heldWrite(r.nx[0], 8)}
	other := r.heldWrite(r.nx[1], 16)
	if x := r.manage(r.nx[0], AbortTaskSet, 0, nil); x != TMFComplete {
		t.Errorf("%v", x)
	}
	for _, c := range mine {
		if !r.finish(c).silent {
			t.Error("an aborted task sends status")
		}
	}
	r.port.release(other)
	r.finish(other).good()
}

func TestClearTaskSet(t *testing.T) {
	for _, tas := range []bool{false, true} {
		r := newRig(t, Config{})
		r.dev.lookup(0).modes.tas.Store(tas)
		mine, other := r.heldWrite(r.nx[0], 0), r.heldWrite(r.nx[1], 8)
		if x := r.manage(r.nx[0], ClearTaskSet, 0, nil); x != TMFComplete {
			t.Errorf("%v", x)
		}
		if !r.finish(mine).silent {
			t.Error("the own task sends status")
		}
		got := r.finish(other)
		if got.silent == tas || got.status != spc.StatusTaskAborted {
			t.Errorf("TAS %v: the other initiator's task: silent %v, %v", tas, got.silent, got.status)
		}
		tur := r.on(r.nx[1], 0, spc.AppendTestUnitReady(nil), nil, 0)
		if tas {
			tur.good()
		} else {
			tur.sense(spc.KeyUnitAttention, spc.ASCCommandsCleared)
		}
		r.do(spc.AppendTestUnitReady(nil), nil, 0).good() // it was not another initiator
	}
}

// TestResetTellsByTAS: a task that a reset ends is told by TASK ABORTED if TAS was set when the reset came, which
// takes that back before storage lets go of the task.
func TestResetTellsByTAS(t *testing.T) {
	for _, tas := range []bool{false, true} {
		release := make(chan struct{})
		dev := faulty.New(newVolume(t, 1<<20, 512), 1, faulty.Rule{Op: faulty.Read, Hold: release})
		r := newRig(t, Config{}, LUConfig{Volume: dev})
		r.dev.lookup(0).modes.tas.Store(tas)
		c := r.start(r.nx[1], 0, spc.AppendRead(nil, 0, 1, false), nil, 512)
		await.True(t, "storage has it", func() bool { return dev.Held() == 1 })
		done := make(chan TMFResponse, 1)
		r.dev.Manage(r.nx[0], LogicalReset, 0, nil, func(x TMFResponse) { done <- x })
		if r.dev.lookup(0).modes.tas.Load() {
			t.Error("TAS was not saved, and is still set")
		}
		close(release)
		if x := <-done; x != TMFComplete {
			t.Errorf("%v", x)
		}
		if got := r.finish(c); got.silent == tas || got.status != spc.StatusTaskAborted {
			t.Errorf("TAS %v: silent %v, %v", tas, got.silent, got.status)
		}
	}
}

func TestResets(t *testing.T) {
	for _, c := range []struct {
		f   TMF
		asc spc.ASC
	}{{LogicalReset, spc.ASCDeviceReset}, {TargetWarmReset, spc.ASCBusReset}, {TargetColdReset, spc.ASCBusReset}} {
		slow := faulty.New(newVolume(t, 1<<20, 512), 1, faulty.Rule{Op: faulty.Read, Delay: 20 * time.Millisecond})
		r := newRig(t, Config{}, LUConfig{Volume: slow, Removable: true, Workers: 1})
		a, b := r.nx[0], r.nx[1]
		r.on(b, 0, []byte{0x16, 0, 0, 0, 0, 0}, nil, 0).good()
		r.on(b, 0, []byte{0x1E, 0, 0, 0, 1, 0}, nil, 0).good()
		read := spc.AppendRead(nil, 0, 1, false)
		// One at work, the others waiting for the only worker, dormant behind ORDERED.
		var cs []*call
		for i := range 4 {
			at := AttrSimple
			if i == 2 {
				at = AttrOrdered
			}
			cs = append(cs, r.start(b, 0, read, nil, 512, attr(at)))
		}
		if x := r.manage(a, c.f, 0, nil); x != TMFComplete {
			t.Errorf("%v", x)
		}
		for _, x := range cs {
			if got := r.finish(x); !got.silent && got.status != spc.StatusGood {
				t.Errorf("%d: a task ended with %v", c.f, got.status)
			}
		}
		for _, n := range r.nx {
			r.attention(n, c.asc)
		}
		r.on(a, 0, read, nil, 512).good() // RESERVE is gone
		r.on(a, 0, spc.AppendStartStop(nil, false, true, false), nil, 0).good()
	}
}

func TestTaskAttributes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		n := r.nx[0]
		read := spc.AppendRead(nil, 0, 1, false)
		ended := func(c *call) bool {
			select {
			case <-c.done:
				return true
			default:
				return false
			}
		}
		w := r.heldWrite(n, 100)
		ordered := r.start(n, 0, read, nil, 512, attr(AttrOrdered))
		simple := r.start(r.nx[1], 0, read, nil, 512)
		head := r.start(n, 0, read, nil, 512, attr(AttrHeadOfQueue))
		r.finish(head).good()
		synctest.Wait()
		if ended(ordered) || ended(simple) {
			t.Error("a task has overtaken an older one it must wait for")
		}
		r.port.release(w)
		r.finish(w).good()
		r.finish(ordered).good()
		r.finish(simple).good()
		// Untagged commands behave as SIMPLE.
		r.on(n, 0, read, nil, 512, attr(AttrUntagged)).good()
	})
}

func TestQueueError(t *testing.T) {
	for _, c := range []struct {
		qerr             uint32
		tas, own, others bool // end aborted
	}{{qerrContinue, false, false, false}, {qerrAbortAll, false, true, true}, {qerrAbortAll, true, true, true}, {qerrAbortNexus, false, true, false}} {
		r := newRig(t, Config{})
		r.dev.lookup(0).modes.qerr.Store(c.qerr)
		r.dev.lookup(0).modes.tas.Store(c.tas)
		own, other := r.heldWrite(r.nx[0], 0), r.heldWrite(r.nx[1], 8)
		r.on(r.nx[0], 0, spc.AppendVerify(nil, 20, 1, 1), make([]byte, 512), 0).good()
		r.on(r.nx[0], 0, spc.AppendVerify(nil, 20, 1, 1), fill(512, 1), 0).sense(spc.KeyMiscompare, spc.ASCMiscompare)
		for _, x := range []struct {
			c       *call
			aborted bool
		}{{own, c.own}, {other, c.others}} {
			if !x.aborted {
				r.port.release(x.c)
			}
			got := r.finish(x.c)
			if (got.status == spc.StatusTaskAborted) != x.aborted {
				t.Errorf("QERR %d: task ended with %v, aborted wanted: %v", c.qerr, got.status, x.aborted)
			}
			if x.aborted && got.silent != (x.c == own || !c.tas) {
				t.Errorf("QERR %d, TAS %v: silent: %v", c.qerr, c.tas, got.silent)
			}
		}
		// Whose tasks end without a status is told of it, who has had the error knows.
		r.do(spc.AppendTestUnitReady(nil), nil, 0).good()
		if c.others && !c.tas {
			r.attention(r.nx[1], spc.ASCCommandsCleared)
		}
		r.on(r.nx[1], 0, spc.AppendTestUnitReady(nil), nil, 0).good()
	}
}

func TestConnectionLost(t *testing.T) {
	r := newRig(t, Config{})
	c := r.start(r.nx[0], 0, spc.AppendWrite(nil, 0, 8, false), make([]byte, 4096), 0, held, func(c *call) { c.failOut = context.Canceled })
	r.port.release(c)
	r.finish(c).sense(spc.KeyAborted, spc.ASCDataPhase)
	// A nexus that ends takes its tasks along.
	c = r.heldWrite(r.nx[1], 0)
	r.dev.CloseNexus(r.nx[1])
	r.nx = r.nx[:1]
	if !r.finish(c).silent {
		t.Error("a task of a closed nexus sends status")
	}
	c = r.heldWrite(r.nx[0], 0)
	r.nx[0].AbortTask(&c.Task)
	if !r.finish(c).silent {
		t.Error("an aborted task sends status")
	}
}

func TestUnitAttentions(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: newNamed(t, "a")})
	a := r.nx[0]
	lu := r.dev.lookup(0)
	// One for each command, oldest first, each once.
	lu.attention(spc.ASCModeChanged, nil)
	lu.attention(spc.ASCCapacityChanged, nil)
	lu.attention(spc.ASCModeChanged, nil)
	r.on(a, 0, spc.AppendInquiry(nil, 36), nil, 36).good()
	r.attention(a, spc.ASCModeChanged)
	s, err := spc.ParseSense(r.on(a, 0, spc.AppendRequestSense(nil, false, 18), nil, 18).good().data)
	if err != nil || s.Key != spc.KeyUnitAttention || s.ASC != spc.ASCCapacityChanged {
		t.Error(s, err)
	}
	r.on(a, 0, spc.AppendTestUnitReady(nil), nil, 0).good()
	// A reset supersedes what was pending.
	lu.attention(spc.ASCModeChanged, nil)
	r.manage(a, LogicalReset, 0, nil)
	r.attention(a, spc.ASCDeviceReset)
	r.on(a, 0, spc.AppendTestUnitReady(nil), nil, 0).good()
	r.attention(r.nx[1], spc.ASCDeviceReset)
}

// TestRemovalGivesUp: a removal whose patience ends before the commands do leaves
// nothing behind once they have ended.
func TestRemovalGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newPooled(t)
		r := newRig(t, Config{}, LUConfig{LUN: 0, Volume: newNamed(t, "a")}, LUConfig{LUN: 4, Volume: v})
		lu, a := r.dev.lookup(4), r.nx[0]
		r.on(a, 4, spc.AppendVerify(nil, 0, 8, 0), nil, 0).good()
		c := r.start(a, 4, spc.AppendWrite(nil, 0, 8, false), make([]byte, 4096), 0, held)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := r.dev.RemoveLUN(ctx, 4); err == nil {
			t.Error("removed under a running command")
		}
		if lu.Stats().Workers == 0 || v.f == nil {
			t.Error("closed under a running command")
		}
		r.port.release(c)
		r.finish(c).good()
		time.Sleep(time.Second)
		if n := lu.Stats().Workers; n != 0 || v.f != nil {
			t.Errorf("%d workers of a removed unit are left", n)
		}
		if err := lu.drain(context.Background()); err != nil { // asked for again, it is done
			t.Error(err)
		}
		r.close()
		r.nx = nil
	})
}

func TestAddRemoveReplace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{}, LUConfig{Volume: newNamed(t, "a")})
		a := r.nx[0]
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if _, err := r.dev.AddLUN(LUConfig{LUN: 4, Volume: newNamed(t, "b")}); err != nil {
			t.Fatal(err)
		}
		r.attention(a, spc.ASCLUNsChanged)
		if _, err := r.dev.AddLUN(LUConfig{LUN: 4, Volume: newNamed(t, "x")}); err == nil {
			t.Error("the same LUN twice")
		}
		r.on(a, 4, spc.AppendTestUnitReady(nil), nil, 0).sense(spc.KeyUnitAttention, spc.ASCInquiryChanged)
		r.on(a, 4, spc.AppendTestUnitReady(nil), nil, 0).good()
		// REPORT LUNS tells as well, and takes the attention away.
		r.on(r.nx[1], 0, spc.AppendReportLUNs(nil, 0, 256), nil, 256).good()
		r.on(r.nx[1], 0, spc.AppendTestUnitReady(nil), nil, 0).good()
		// Removal waits for the commands that use the volume.
		c := r.start(a, 4, spc.AppendWrite(nil, 0, 8, false), make([]byte, 4096), 0, held)
		removed := make(chan error, 1)
		go func() { removed <- r.dev.RemoveLUN(ctx, 4) }()
		synctest.Wait()
		r.on(a, 4, spc.AppendTestUnitReady(nil), nil, 0).illegal(spc.ASCLUNotSupported)
		select {
		case err := <-removed:
			t.Errorf("removed under a running command: %v", err)
		default:
		}
		r.port.release(c)
		r.finish(c).good()
		if err := <-removed; err != nil {
			t.Error(err)
		}
		r.attention(a, spc.ASCLUNsChanged)
		if err := r.dev.RemoveLUN(ctx, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := r.dev.AddLUN(LUConfig{LUN: 0, Volume: newNamed(t, "c")}); err != nil {
			t.Fatal(err)
		}
		r.attention(a, spc.ASCInquiryChanged)
		if err := r.dev.RemoveLUN(ctx, 9); err == nil {
			t.Error("removed a LUN that does not exist")
		}
	})
}

func TestResize(t *testing.T) {
	v := newVolume(t, 1<<20, 512)
	r := newRig(t, Config{}, LUConfig{Volume: v})
	if err := v.(interface{ Resize(int64) error }).Resize(2 << 20); err != nil {
		t.Fatal(err)
	}
	for _, n := range r.nx {
		r.attention(n, spc.ASCCapacityChanged)
	}
	c, err := spc.ParseCapacity16(r.do(spc.AppendReadCapacity16(nil, 32), nil, 32).good().data)
	if err != nil || c.Blocks != 4096 {
		t.Error(c, err)
	}
	r.do(spc.AppendRead(nil, 4095, 1, false), nil, 512).good()
}

// TestSlowVolumeDelaysNobody: commands to a fast volume end while a slow one
// has its hands full, on the same port and the same goroutine.
func TestSlowVolumeDelaysNobody(t *testing.T) { synctest.Test(t, testSlowVolumeDelaysNobody) }

func testSlowVolumeDelaysNobody(t *testing.T) {
	slow := faulty.New(newNamed(t, "slow"), 1, faulty.Rule{Op: faulty.Read, Delay: 300 * time.Millisecond})
	r := newRig(t, Config{}, LUConfig{Volume: slow, Workers: 2}, LUConfig{LUN: 1, Volume: newNamed(t, "fast")})
	var cs []*call
	for i := range 4 {
		cs = append(cs, r.start(r.nx[0], 0, spc.AppendRead(nil, uint64(i), 1, false), nil, 512))
	}
	for range 100 {
		r.on(r.nx[0], 1, spc.AppendRead(nil, 0, 1, false), nil, 512).good()
	}
	select {
	case <-cs[3].done:
		t.Error("the slow volume was faster than the fast one")
	default:
	}
	for _, c := range cs {
		r.finish(c).good()
	}
}

// TestAccessStatesOfUnits: two units have different states through one port group,
// each tells and changes its own, and only its own initiators learn of it.
func TestAccessStatesOfUnits(t *testing.T) {
	groups := []PortGroup{{ID: 1, Ports: []uint16{1}}, {ID: 2, Ports: []uint16{2}}}
	r := newRig(t, Config{Groups: groups, ExplicitALUA: true}, LUConfig{Volume: newNamed(t, "a")},
		LUConfig{LUN: 1, Volume: newNamed(t, "b"), Access: map[uint16]AccessState{0: Standby, 2: ActiveNonOptimized}})
	a, b, read := r.nx[0], r.nx[1], spc.AppendRead(nil, 0, 1, false)
	states := func(lun uint16) [2]byte {
		t.Helper()
		got := r.on(a, lun, spc.AppendReportTargetPortGroups(nil, false, 64), nil, 64).good().data
		return [2]byte{got[4] & 0xF, got[16] & 0xF}
	}
	if x, y := states(0), states(1); x != [2]byte{0, 0} || y != [2]byte{2, 1} {
		t.Errorf("states of the units: %v, %v", x, y)
	}
	r.on(a, 0, read, nil, 512).good()
	r.on(a, 1, read, nil, 512).sense(spc.KeyNotReady, spc.ASCAccessStandby)
	// SET TARGET PORT GROUPS through one unit leaves the other as it is.
	list := []byte{0, 0, 0, 0, byte(ActiveOptimized), 0, 0, 1, byte(Unavailable), 0, 0, 2}
	r.on(a, 1, []byte{0xA4, 0x0A, 0, 0, 0, 0, 0, 0, 0, byte(len(list)), 0, 0}, list, 0).good()
	if x, y := states(0), states(1); x != [2]byte{0, 0} || y != [2]byte{0, 3} {
		t.Errorf("states after SET TARGET PORT GROUPS: %v, %v", x, y)
	}
	r.on(a, 1, read, nil, 512).good()
	r.on(b, 0, read, nil, 512).good()
	r.on(b, 1, read, nil, 512).sense(spc.KeyUnitAttention, spc.ASCALUAStateChanged)
	r.on(b, 1, read, nil, 512).good()
	if m := r.dev.lookup(1).AccessStates(); m[1] != ActiveOptimized || m[2] != Unavailable {
		t.Errorf("%v", m)
	}
}

func TestAccessStates(t *testing.T) {
	r := newRig(t, Config{ExplicitALUA: true, Groups: []PortGroup{{ID: 1, Ports: []uint16{1}}, {ID: 2, Ports: []uint16{2}, State: Standby, Preferred: true}}})
	a := r.nx[0]
	b, err := r.dev.NewNexus(NexusConfig{Initiator: "iqn.1994-05.com.example:host9", ISID: [6]byte{9}, RelPort: 2})
	if err != nil {
		t.Fatal(err)
	}
	r.nx = append(r.nx, b)
	tur := spc.AppendTestUnitReady(nil)
	r.on(b, 0, tur, nil, 0).sense(spc.KeyUnitAttention, spc.ASCPowerOnReset)
	r.on(b, 0, spc.AppendRead(nil, 0, 1, false), nil, 512).sense(spc.KeyNotReady, spc.ASCAccessStandby)
	r.on(b, 0, spc.AppendInquiry(nil, 36), nil, 36).good()
	got := r.on(a, 0, spc.AppendReportTargetPortGroups(nil, false, 256), nil, 256).good().data
	if len(got) != 4+2*12 || got[4] != 0 || got[7] != 1 || got[16] != 0x82 || got[19] != 2 || got[27] != 2 {
		t.Errorf("port groups % x", got)
	}
	r.on(a, 0, spc.AppendReportTargetPortGroups(nil, true, 256), nil, 256).good()
	stpg := func(state, group byte) *result {
		list := []byte{0, 0, 0, 0, state, 0, 0, group}
		cdb := []byte{0xA4, 0x0A, 0, 0, 0, 0, 0, 0, 0, byte(len(list)), 0, 0}
		return r.on(b, 0, cdb, list, 0)
	}
	stpg(0, 2).good() // explicit: standby ports accept it
	r.attention(a, spc.ASCALUAStateChanged)
	r.on(b, 0, tur, nil, 0).good()
	stpg(7, 2).illegal(spc.ASCInvalidFieldInParam)
	stpg(0, 9).illegal(spc.ASCInvalidFieldInParam)
	for _, c := range []struct {
		s   AccessState
		asc spc.ASC
	}{{Unavailable, spc.ASCAccessUnavailable}, {Offline, spc.ASCAccessOffline}, {Transitioning, spc.ASCAccessTransition}, {Standby, spc.ASCAccessStandby}} {
		if err := r.dev.SetAccessState(0, 1, c.s); err != nil {
			t.Fatal(err)
		}
		r.on(a, 0, tur, nil, 0).sense(spc.KeyUnitAttention, spc.ASCALUAStateChanged)
		r.on(a, 0, tur, nil, 0).sense(spc.KeyNotReady, c.asc)
		r.on(a, 0, spc.AppendReportTargetPortGroups(nil, false, 256), nil, 256).good()
	}
	if err := r.dev.SetAccessState(0, 5, Standby); err == nil || !strings.Contains(err.Error(), "there are [1 2]") {
		t.Errorf("a group that does not exist: %v", err)
	}
	if err := r.dev.SetAccessState(3, 1, Standby); err == nil {
		t.Error("a LUN that does not exist")
	}
	if err := r.dev.SetAccessState(0, 1, 9); err == nil {
		t.Error("a state that does not exist")
	}
	for _, want := range []map[uint16]AccessState{{3: Standby}, {2: Transitioning}} {
		if _, err := r.dev.AddLUN(LUConfig{LUN: 1, Volume: newNamed(t, "x"), Access: want}); err == nil {
			t.Errorf("a unit that begins with %v", want)
		}
	}
	if _, err := NewDevice(Config{Groups: []PortGroup{{ID: 1, Ports: []uint16{1}}, {ID: 1, Ports: []uint16{2}}}}); err == nil {
		t.Error("two groups with one identifier")
	}
	if _, err := NewDevice(Config{Groups: []PortGroup{{ID: 1, Ports: []uint16{1}}, {ID: 2, Ports: []uint16{1}}}}); err == nil {
		t.Error("a port in two groups")
	}
	if _, err := r.dev.NewNexus(NexusConfig{RelPort: 77}); err == nil {
		t.Error("a nexus through a port that does not exist")
	}
}

// TestNexusReset: I_T NEXUS RESET ends what belongs to one initiator, on every unit,
// and nothing else.
func TestNexusReset(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: newNamed(t, "a"), Removable: true}, LUConfig{LUN: 1, Volume: newNamed(t, "b")})
	a, b := r.nx[0], r.nx[1]
	prevent := []byte{0x1E, 0, 0, 0, 1, 0}
	r.on(a, 0, prevent, nil, 0).good()
	r.on(a, 1, []byte{0x16, 0, 0, 0, 0, 0}, nil, 0).good()
	mine, theirs := r.heldWrite(a, 0), r.heldWrite(b, 8)
	if x := r.manage(a, NexusReset, 99, nil); x != TMFComplete { // the LUN means nothing
		t.Errorf("%v", x)
	}
	if !r.finish(mine).silent {
		t.Error("an aborted task sends status")
	}
	r.port.release(theirs)
	r.finish(theirs).good()
	for lun := range uint16(2) {
		for range 2 { // asking takes nothing away
			if e, pending, known := r.dev.QueryAsyncEvent(a, spc.EncodeLUN(lun)); !known || !pending || e.Information() != 0x162907 {
				t.Errorf("LUN %d: pending %v, %06x", lun, pending, e.Information())
			}
		}
		r.on(a, lun, spc.AppendTestUnitReady(nil), nil, 0).sense(spc.KeyUnitAttention, spc.ASCNexusLoss)
		r.on(b, lun, spc.AppendTestUnitReady(nil), nil, 0).good()
	}
	r.on(b, 0, spc.AppendStartStop(nil, false, true, false), nil, 0).good() // nobody prevents the removal
	r.on(b, 0, spc.AppendStartStop(nil, false, true, true), nil, 0).good()
	r.attention(a, spc.ASCMediumMayHaveChanged)
	if _, pending, known := r.dev.QueryAsyncEvent(a, spc.EncodeLUN(0)); pending || !known {
		t.Errorf("pending %v, known %v", pending, known)
	}
	if _, _, known := r.dev.QueryAsyncEvent(a, spc.EncodeLUN(7)); known {
		t.Error("an event of a unit that does not exist")
	}
	r.dev.lookup(0).attention(spc.ASCModeChanged, nil)
	r.dev.lookup(0).attention(spc.ASCCapacityChanged, nil)
	if e, _, _ := r.dev.QueryAsyncEvent(a, spc.EncodeLUN(0)); e.Information() != 0x262A01 {
		t.Errorf("two events: %06x", e.Information())
	}
}

// TestRemovedUnitIsAlwaysFound: at no moment of its removal is a unit that has tasks
// out of reach of task management.
func TestRemovedUnitIsAlwaysFound(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: newNamed(t, "a")})
	for i := range 200 { // the more nexuses the longer a change takes
		n, err := r.dev.NewNexus(NexusConfig{Initiator: fmt.Sprintf("iqn.1994-05.com.example:crowd%d", i), ISID: [6]byte{5: 9}})
		if err != nil {
			t.Fatal(err)
		}
		r.nx = append(r.nx, n)
	}
	for i := range 10 {
		lu := r.dev.lookup(0)
		c := r.heldWrite(r.nx[0], 0)
		stop, missed, wg := make(chan struct{}), 0, sync.WaitGroup{}
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if !slices.Contains(r.dev.numbered(0), lu) || !slices.Contains(r.dev.withTasks(), lu) {
					missed++
				}
			}
		})
		gone := make(chan error, 1)
		next := LUConfig{Volume: newNamed(t, fmt.Sprint("b", i))}
		go func() { gone <- r.dev.RemoveLUN(t.Context(), 0) }()
		await.True(t, "the unit is on its way out", lu.Removed)
		close(stop)
		wg.Wait()
		if missed > 0 {
			t.Errorf("a unit with a task was not found %d times", missed)
		}
		r.port.release(c)
		r.finish(c)
		if err := <-gone; err != nil {
			t.Fatal(err)
		}
		if _, err := r.dev.AddLUN(next); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			r.on(r.nx[0], 0, spc.AppendTestUnitReady(nil), nil, 0)
		}
	}
}

// TestCapacityInStandby: a path that is not used now tells the size of the unit.
func TestCapacityInStandby(t *testing.T) {
	v := newNamed(t, "a")
	r := newRig(t, Config{}, LUConfig{Volume: v, Access: map[uint16]AccessState{0: Standby}})
	r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).sense(spc.KeyNotReady, spc.ASCAccessStandby)
	blocks := uint64(v.Info().Size) / 512
	if c, _, err := spc.ParseCapacity10(r.do(spc.AppendReadCapacity10(nil), nil, 8).good().data); err != nil || c.Blocks != blocks {
		t.Errorf("READ CAPACITY(10): %+v, %v", c, err)
	}
	if c, err := spc.ParseCapacity16(r.do(spc.AppendReadCapacity16(nil, 32), nil, 32).good().data); err != nil || c.Blocks != blocks {
		t.Errorf("READ CAPACITY(16): %+v, %v", c, err)
	}
	if err := r.dev.SetAccessState(0, 1, Unavailable); err != nil {
		t.Fatal(err)
	}
	r.attention(r.nx[0], spc.ASCALUAStateChanged)
	r.do(spc.AppendReadCapacity16(nil, 32), nil, 32).sense(spc.KeyNotReady, spc.ASCAccessUnavailable)
}

// TestALUAModes: initiators change access states only where they are told that they may.
func TestALUAModes(t *testing.T) {
	list := []byte{0, 0, 0, 0, byte(Standby), 0, 0, 1}
	set := []byte{0xA4, 0x0A, 0, 0, 0, 0, 0, 0, 0, byte(len(list)), 0, 0}
	for _, explicit := range []bool{false, true} {
		r := newRig(t, Config{ExplicitALUA: explicit})
		q, err := spc.ParseInquiryData(r.do(spc.AppendInquiry(nil, 96), nil, 96).good().data)
		if err != nil {
			t.Fatal(err)
		}
		told := r.do(spc.AppendReportOpcodes(nil, false, 3, spc.OpMaintenanceOut, spc.SASetTPG, 64), nil, 64).good().data[1] & 7
		got := r.do(set, list, 0)
		state := r.dev.lookup(0).AccessStates()[1]
		if explicit {
			if got.good(); q.TPGS != 3 || told != 3 || state != Standby {
				t.Errorf("explicit: TPGS %d, support %d, state %v", q.TPGS, told, state)
			}
			continue
		}
		if got.illegal(spc.ASCInvalidOpcode); q.TPGS != 1 || told != 1 || state != ActiveOptimized {
			t.Errorf("implicit: TPGS %d, support %d, state %v", q.TPGS, told, state)
		}
		if err := r.dev.SetAccessState(0, 1, Standby); err != nil { // this side may
			t.Fatal(err)
		}
	}
}
