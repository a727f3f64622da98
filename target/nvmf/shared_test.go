package nvmf_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/initiator"
	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/target"
	"softiser/target/scsi"
)

// One volume is a LUN over iSER and a namespace at once.

const sharedIQN = "iqn.2026-11.softiser:shared"

// lun serves the rig's volume as a LUN too, and opens it.
func (r *rig) lun() *initiator.LUN {
	r.t.Helper()
	err := r.srv.AddTarget(target.Target{Name: sharedIQN, LUNs: []target.LUN{{Name: "shared", LUConfig: scsi.LUConfig{Volume: r.vol}}}})
	if err != nil {
		r.t.Fatal(err)
	}
	cfg, err := initiator.ParseURL("iser://" + r.addr + "/" + sharedIQN + "/0")
	if err != nil {
		r.t.Fatal(err)
	}
	cfg.SilenceProbe = -1 // a machine that is busy for a second is no takeover
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l, err := initiator.Open(ctx, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { l.Close() })
	return l
}

// prOut sends PERSISTENT RESERVE OUT.
func prOut(t *testing.T, l *initiator.LUN, action, kind byte, key, next uint64) error {
	t.Helper()
	p := make([]byte, 24)
	binary.BigEndian.PutUint64(p, key)
	binary.BigEndian.PutUint64(p[8:], next)
	return l.Do(context.Background(), &initiator.Request{Op: initiator.OpCDB, CDB: []byte{0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0}, Buf: p})
}

// prIn sends PERSISTENT RESERVE IN.
func prIn(t *testing.T, l *initiator.LUN, action byte) []byte {
	t.Helper()
	p := make([]byte, 4096)
	if err := l.Do(context.Background(), &initiator.Request{Op: initiator.OpCDB, CDB: []byte{0x5E, action, 0, 0, 0, 0, 0, 0x10, 0, 0}, Buf: p, DataIn: true}); err != nil {
		t.Fatal(err)
	}
	return p
}

func (q *queue) reserve(op nvme.Opcode, action uint8, kind nvme.ReservationType, ignore bool, keys ...uint64) error {
	var s nvme.SQE
	c := s.NewReservation(op, 1, action, kind, ignore)
	_, err := q.do(*c.SQE, nil, nvme.AppendKeys(nil, keys...))
	return err
}

func (q *queue) report(t *testing.T) *nvme.ReservationState {
	t.Helper()
	var s nvme.SQE
	s.NewReservationReport(1, 4096)
	b := make([]byte, 4096)
	if _, err := q.do(s, b, nil); err != nil {
		t.Fatal(err)
	}
	st, err := nvme.ParseReservationState(b)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// What one wire writes the other reads.
func TestSharedData(t *testing.T) {
	r := open(t, nil)
	l := r.lun()
	q := r.attach(hostNQN, 10, 1).io[0]
	want := pattern(1<<20, 1)
	if _, err := l.WriteAt(want, 4096); err != nil {
		t.Fatal(err)
	}
	if got, err := q.readBlocks(8, len(want)); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("what SCSI wrote: %v", err)
	}
	want = pattern(1<<20, 2)
	if err := q.write(8, want); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := l.ReadAt(got, 4096); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("what NVMe wrote: %v", err)
	}
}

// TestSharedResize: one resize reaches both, and what either writes behind the old end the other
// reads.
func TestSharedResize(t *testing.T) {
	r := open(t, nil)
	l := r.lun()
	h := r.attach(hostNQN, 10, 1)
	if err := r.vol.(blockdev.Resizer).Resize(32 << 20); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the LUN has its new size", func() bool {
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil { // brings the unit attention
			t.Error(err)
		}
		return l.Info().Size == 32<<20
	})
	if n, err := nvme.ParseNamespace(h.identify(nvme.CNSNamespace, 1)); err != nil || n.Size != 32<<20/512 {
		t.Errorf("the namespace has %d blocks, %v", n.Size, err)
	}
	want := pattern(4096, 5)
	if _, err := l.WriteAt(want, 31<<20); err != nil {
		t.Fatal(err)
	}
	if got, err := h.io[0].readBlocks(31<<20/512, len(want)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("what SCSI wrote: %v", err)
	}
}

// A reservation through one wire holds against the other, and each shows both
// registrants.
func TestSharedReservations(t *testing.T) {
	r := open(t, nil)
	l := r.lun()
	h := r.attach(hostNQN, 10, 1)
	q := h.io[0]
	block := pattern(512, 1)
	const register, reserve, release, exclusive = 0, 1, 2, 3
	if err := prOut(t, l, register, 0, 0, 0x5C51); err != nil {
		t.Fatal(err)
	}
	if err := prOut(t, l, reserve, exclusive, 0x5C51, 0); err != nil {
		t.Fatal(err)
	}
	conflict := nvme.ReservationConflict | nvme.DoNotRetry
	if err := q.write(0, block); !errors.Is(err, conflict) {
		t.Errorf("an NVMe write against a SCSI reservation: %v", err)
	}
	if _, err := q.readBlocks(0, 512); !errors.Is(err, conflict) {
		t.Errorf("an NVMe read against Exclusive Access: %v", err)
	}
	if err := q.reserve(nvme.OpReservationRegister, nvme.RegisterKey, 0, false, 0, 0x4E); err != nil {
		t.Fatal(err)
	}
	if err := q.reserve(nvme.OpReservationAcquire, nvme.AcquireReservation, nvme.WriteExclusive, false, 0x4E, 0); !errors.Is(err, conflict) {
		t.Errorf("acquired what SCSI holds: %v", err)
	}
	st := q.report(t)
	if st.Type != nvme.ExclusiveAccess || len(st.Registrants) != 2 {
		t.Fatalf("%+v", st)
	}
	for _, g := range st.Registrants {
		switch g.Key {
		case 0x4E:
			if g.Holder || g.HostID != h.data.HostID {
				t.Errorf("%+v", g)
			}
		case 0x5C51:
			if !g.Holder || g.HostID == (nvme.HostID{}) || g.HostID == h.data.HostID {
				t.Errorf("%+v", g)
			}
		default:
			t.Errorf("%+v", g)
		}
	}
	full := prIn(t, l, 3)
	if !bytes.Contains(full, []byte(hostNQN)) || !bytes.Contains(full, []byte("iqn.")) {
		t.Errorf("READ FULL STATUS shows %q", strings.Map(func(c rune) rune {
			if c < ' ' || c > '~' {
				return '.'
			}
			return c
		}, string(full[:400])))
	}
	status := r.srv.VolumeStatus(r.vol).Reservation
	if status == nil || status.Type != "exclusive access" || len(status.Registrants) != 2 {
		t.Fatalf("status shows %+v", status)
	}
	for _, g := range status.Registrants {
		if nv := g.Wire == "NVMe"; g.Holder == nv || (g.Initiator == hostNQN) != nv || (g.HostID == h.data.HostID.String()) != nv || (g.Node == subNQN) != nv {
			t.Errorf("status shows %+v", g)
		}
	}
	// The other way round: NVMe preempts, and SCSI is shut out.
	if err := q.reserve(nvme.OpReservationAcquire, nvme.PreemptReservation, nvme.WriteExclusive, false, 0x4E, 0x5C51); err != nil {
		t.Fatal(err)
	}
	if err := q.write(0, block); err != nil {
		t.Errorf("a write of the new holder: %v", err)
	}
	if _, err := l.WriteAt(block, 0); err == nil {
		t.Error("SCSI writes against NVMe's reservation")
	}
	got := make([]byte, 512)
	if _, err := l.ReadAt(got, 0); err != nil || !bytes.Equal(got, block) {
		t.Errorf("a read against Write Exclusive: %v", err)
	}
	if err := q.reserve(nvme.OpReservationRelease, nvme.ReleaseReservation, nvme.WriteExclusive, false, 0x4E); err != nil {
		t.Fatal(err)
	}
	if _, err := l.WriteAt(block, 0); err != nil {
		t.Errorf("after the release: %v", err)
	}
}

// The rules of NVMe's own reservation commands.
func TestReservationRules(t *testing.T) {
	r := open(t, nil)
	a, b := r.attach("nqn.a", 1, 1).io[0], r.attach("nqn.b", 2, 1).io[0]
	conflict, invalid := nvme.ReservationConflict|nvme.DoNotRetry, nvme.InvalidField|nvme.DoNotRetry
	is := func(what string, err error, want error) {
		t.Helper()
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	reg, acq, rel := nvme.OpReservationRegister, nvme.OpReservationAcquire, nvme.OpReservationRelease
	is("unregister who is not", a.reserve(reg, nvme.UnregisterKey, 0, false, 1, 0), conflict)
	is("replace who is not", a.reserve(reg, nvme.ReplaceKey, 0, false, 1, 2), conflict)
	is("unregister who is not, ignoring the key", a.reserve(reg, nvme.UnregisterKey, 0, true, 0, 0), conflict)
	is("replace who is not, by no key", a.reserve(reg, nvme.ReplaceKey, 0, false, 0, 2), conflict)
	is("acquire unregistered", a.reserve(acq, nvme.AcquireReservation, nvme.WriteExclusive, false, 1, 0), conflict)
	is("key 0", a.reserve(reg, nvme.RegisterKey, 0, false, 0, 0), invalid)
	is("register", a.reserve(reg, nvme.RegisterKey, 0, false, 0, 1), nil)
	is("register again", a.reserve(reg, nvme.RegisterKey, 0, false, 0, 1), nil)
	is("register with another key", a.reserve(reg, nvme.RegisterKey, 0, false, 0, 2), conflict)
	is("replace with the wrong key", a.reserve(reg, nvme.ReplaceKey, 0, false, 9, 2), conflict)
	is("replace", a.reserve(reg, nvme.ReplaceKey, 0, false, 1, 2), nil)
	is("replace, ignoring", a.reserve(reg, nvme.ReplaceKey, 0, true, 9, 3), nil)
	is("register b", b.reserve(reg, nvme.RegisterKey, 0, false, 0, 7), nil)
	is("no such action", a.reserve(reg, 5, 0, false, 3, 3), invalid)
	is("no such type", a.reserve(acq, nvme.AcquireReservation, 7, false, 3, 0), invalid)
	is("acquire, ignoring the key", a.reserve(acq, nvme.AcquireReservation, nvme.WriteExclusive, true, 3, 0), invalid)
	is("release, ignoring the key", a.reserve(rel, nvme.ReleaseReservation, nvme.WriteExclusive, true, 3), invalid)
	is("a host that does not say who it is", r.attach("nqn.c", 0, 1).io[0].reserve(reg, nvme.RegisterKey, 0, false, 0, 8), invalid)
	persist := sqe(func(s *nvme.SQE) { s.NewReservation(reg, 1, nvme.ReplaceKey, 0, false).SetPersist(1) })
	_, err := a.do(persist, nil, nvme.AppendKeys(nil, 3, 3))
	is("no such persistence", err, invalid)
	is("acquire", a.reserve(acq, nvme.AcquireReservation, nvme.WriteExclusiveRegistrantsOnly, false, 3, 0), nil)
	is("acquire again", a.reserve(acq, nvme.AcquireReservation, nvme.WriteExclusiveRegistrantsOnly, false, 3, 0), nil)
	is("acquire what is held", b.reserve(acq, nvme.AcquireReservation, nvme.WriteExclusive, false, 7, 0), conflict)
	is("a registrant writes", b.write(0, pattern(512, 1)), nil)
	is("release by another", b.reserve(rel, nvme.ReleaseReservation, nvme.WriteExclusiveRegistrantsOnly, false, 7), nil)
	if st := b.report(t); st.Type != nvme.WriteExclusiveRegistrantsOnly || len(st.Registrants) != 2 {
		t.Errorf("%+v", st)
	}
	is("release of another type", a.reserve(rel, nvme.ReleaseReservation, nvme.ExclusiveAccess, false, 3), invalid)
	is("preempt and abort", b.reserve(acq, nvme.PreemptAndAbort, nvme.ExclusiveAccess, false, 7, 3), nil)
	is("the preempted writes", a.write(0, pattern(512, 1)), conflict)
	if st := b.report(t); st.Type != nvme.ExclusiveAccess || len(st.Registrants) != 1 || !st.Registrants[0].Holder {
		t.Errorf("%+v", st)
	}
	is("clear", b.reserve(rel, nvme.ClearReservation, 0, false, 7), nil)
	is("after clear", a.write(0, pattern(512, 1)), nil)
	var s nvme.SQE
	s.NewReservationReport(1, 4096)
	s.SetCDW(11, 0)
	_, err = a.do(s, make([]byte, 4096), nil)
	is("short host identifiers", err, nvme.HostIDInconsistent|nvme.DoNotRetry)
}

// A command of a host that is preempted, whose data is on its way, ends before the preemption does, and says why.
func TestPreemptAndAbort(t *testing.T) {
	r := open(t, nil)
	a, b := r.attach("nqn.a", 1, 1).io[0], r.attach("nqn.b", 2, 1).io[0]
	for i, q := range []*queue{a, b} {
		if err := q.reserve(nvme.OpReservationRegister, nvme.RegisterKey, 0, false, 0, uint64(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	c := a.startSilent(rw(nvme.OpWrite, 0, 128), make([]byte, 64<<10))
	<-a.asked
	if err := b.reserve(nvme.OpReservationAcquire, nvme.PreemptAndAbort, nvme.WriteExclusive, false, 2, 1); err != nil {
		t.Fatal(err)
	}
	if s := a.status(c); s != nvme.AbortedPreempt {
		t.Errorf("the write of the preempted host: %v", s)
	}
}

// A host whose registration another one preempts is told.
func TestReservationEvent(t *testing.T) {
	r := open(t, nil)
	h := r.attach("nqn.a", 1, 1)
	b := r.attach("nqn.b", 2, 1).io[0]
	if err := h.io[0].reserve(nvme.OpReservationRegister, nvme.RegisterKey, 0, false, 0, 1); err != nil {
		t.Fatal(err)
	}
	if err := b.reserve(nvme.OpReservationRegister, nvme.RegisterKey, 0, false, 0, 2); err != nil {
		t.Fatal(err)
	}
	if err := h.io[0].reserve(nvme.OpReservationAcquire, nvme.AcquireReservation, nvme.WriteExclusive, false, 1, 0); err != nil {
		t.Fatal(err)
	}
	var s nvme.SQE
	s.Init(nvme.AdminAsyncEvent, 0)
	c := h.start(s, nil, nil)
	if err := b.reserve(nvme.OpReservationAcquire, nvme.PreemptReservation, nvme.WriteExclusive, false, 2, 1); err != nil {
		t.Fatal(err)
	}
	e, err := h.result(c)
	if err != nil || nvme.Event(e.DW0()) != nvme.EventReservation {
		t.Fatalf("%v, %v", e, err)
	}
	n, err := nvme.ParseReservationLog(h.log(nvme.LogReservation, nvme.ReservationLogLen))
	if err != nil || n.Notice != nvme.NoticeRegistrationPreempted || n.NSID != 1 || n.Count != 1 {
		t.Errorf("%+v, %v", n, err)
	}
	if n, _ := nvme.ParseReservationLog(h.log(nvme.LogReservation, nvme.ReservationLogLen)); n.Notice != nvme.NoticeNone {
		t.Errorf("%+v", n)
	}
}

// COMPARE AND WRITE of SCSI and writes of NVMe: a counter in one block loses no step.
func TestSharedAtomics(t *testing.T) {
	r := open(t, nil)
	l := r.lun()
	q := r.attach(hostNQN, 10, 1).io[0]
	const steps = 200
	var wg sync.WaitGroup
	wg.Go(func() { // beside it, NVMe writes other blocks and reads this one
		for i := range steps {
			if err := q.write(uint64(8+i%8), pattern(512, byte(i))); err != nil {
				t.Error(err)
				return
			}
			b, err := q.readBlocks(0, 512)
			if err != nil || binary.LittleEndian.Uint64(b) != binary.LittleEndian.Uint64(b[504:]) {
				t.Errorf("half a COMPARE AND WRITE was read: %v", err)
				return
			}
		}
	})
	old, now := make([]byte, 512), make([]byte, 512)
	for i := range steps {
		binary.LittleEndian.PutUint64(now, uint64(i+1))
		binary.LittleEndian.PutUint64(now[504:], uint64(i+1))
		err := l.Do(context.Background(), &initiator.Request{Op: initiator.OpCDB, CDB: []byte{0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}, Buf: append(bytes.Clone(old), now...)})
		if err != nil {
			t.Fatal(err)
		}
		copy(old, now)
	}
	wg.Wait()
}
