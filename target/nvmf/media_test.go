package nvmf_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/blockdev/file"
	"softiser/initiator"
	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/target"
	"softiser/target/nvmf"
)

// kept serves a file whose state is kept, so that another life of it can be looked at.
func kept(t *testing.T, dir string) *rig {
	t.Helper()
	d, err := file.Open(file.Config{Path: filepath.Join(dir, "disk"), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	r := open(t, func(c *target.Config, s *nvmf.SubsystemConfig) {
		c.StateDir = dir
		s.Namespaces[0].Volume = d
	})
	r.vol = d
	return r
}

func (h *host) sanitize(dword10, pattern uint32) error {
	var s nvme.SQE
	s.NewSanitize(dword10, pattern)
	_, err := h.do(s, nil, nil)
	return err
}

func (h *host) sanitizeLog() nvme.SanitizeLog {
	h.t.Helper()
	l, err := nvme.ParseSanitizeLog(h.log(nvme.LogSanitize, nvme.SanitizeLogLen))
	if err != nil {
		h.t.Fatal(err)
	}
	return l
}

// event waits for an event.
func (h *host) event() nvme.Event {
	h.t.Helper()
	var s nvme.SQE
	s.Init(nvme.AdminAsyncEvent, 0)
	e, err := h.do(s, nil, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	return nvme.Event(e.DW0())
}

// Format NVM leaves zeroes, with and without a secure erase.
func TestFormat(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 1)
	for _, e := range []nvme.SecureErase{nvme.SecureEraseNone, nvme.SecureEraseUser} {
		if err := h.io[0].write(100, pattern(64<<10, 1)); err != nil {
			t.Fatal(err)
		}
		var s nvme.SQE
		s.NewFormat(1, e)
		if _, err := h.do(s, nil, nil); err != nil {
			t.Fatal(err)
		}
		if got, err := h.io[0].readBlocks(0, 1<<20); err != nil || !bytes.Equal(got, make([]byte, 1<<20)) {
			t.Errorf("secure erase %d: something is left: %v", e, err)
		}
	}
	for name, tt := range map[string]struct {
		nsid, dword10 uint32
		want          nvme.Status
	}{
		"all namespaces":  {nvme.NSIDAll, 0, nvme.InvalidField},
		"no namespace":    {9, 0, nvme.InvalidNamespace},
		"another format":  {1, 1, nvme.InvalidFormat},
		"metadata":        {1, 1 << 4, nvme.InvalidFormat},
		"protection":      {1, 1 << 5, nvme.InvalidFormat},
		"cryptographic":   {1, 2 << 9, nvme.InvalidField},
		"no such erasure": {1, 5 << 9, nvme.InvalidField},
	} {
		var s nvme.SQE
		s.NewFormat(tt.nsid, 0)
		s.SetCDW(10, tt.dword10)
		if _, err := h.do(s, nil, nil); !errors.Is(err, tt.want|nvme.DoNotRetry) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c, err := nvme.ParseController(h.identify(nvme.CNSController, 0))
	if err != nil || c.OACS&nvme.HasFormat == 0 || c.FNA != nvme.FormatNotForAll || c.Sanitize == 0 || c.NWPC != nvme.WriteProtects {
		t.Errorf("%+v, %v", c, err)
	}
}

// A volume that would forget that a format has begun offers neither it nor sanitize.
func TestNoFormat(t *testing.T) {
	r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
		d, err := file.Open(file.Config{Path: filepath.Join(t.TempDir(), "disk"), Size: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		s.Namespaces[0].Volume = d
	})
	h := r.attach(hostNQN, 10, 0)
	var s nvme.SQE
	s.NewFormat(1, 0)
	if _, err := h.do(s, nil, nil); !errors.Is(err, nvme.InvalidOpcode|nvme.DoNotRetry) {
		t.Errorf("format: %v", err)
	}
	if err := h.sanitize(uint32(nvme.SanitizeOverwrite), 0); !errors.Is(err, nvme.InvalidOpcode|nvme.DoNotRetry) {
		t.Errorf("sanitize: %v", err)
	}
	if _, err := h.protect(1); !errors.Is(err, nvme.FeatureNotChangeable|nvme.DoNotRetry) {
		t.Errorf("write protection: %v", err)
	}
	c, err := nvme.ParseController(h.identify(nvme.CNSController, 0))
	if err != nil || c.OACS != 0 || c.Sanitize != 0 || c.NWPC != 0 {
		t.Errorf("%+v, %v", c, err)
	}
}

// Sanitize writes the pattern, says in the log how far it is, and by an event that it is
// over; what it has done is known after a restart, and SCSI's is the same.
func TestSanitize(t *testing.T) {
	dir := t.TempDir()
	r := kept(t, dir)
	h := r.attach(hostNQN, 10, 1)
	if err := h.io[0].write(0, pattern(1<<20, 1)); err != nil {
		t.Fatal(err)
	}
	if l := h.sanitizeLog(); l.State != nvme.SanitizeNever || l.Progress != 0xFFFF {
		t.Errorf("before: %+v", l)
	}
	d10 := nvme.SanitizeDword10(nvme.SanitizeOverwrite, 2, nvme.SanitizeInvert|nvme.SanitizeUnrestricted)
	if err := h.sanitize(d10, 0x12345678); err != nil {
		t.Fatal(err)
	}
	if e := h.event(); e != nvme.EventSanitizeDone {
		t.Errorf("%v", e)
	}
	if l := h.sanitizeLog(); l != (nvme.SanitizeLog{Progress: 0xFFFF, State: nvme.SanitizeDone, Passes: 2, Dword10: d10}) {
		t.Errorf("after: %+v", l)
	}
	if got, err := h.io[0].readBlocks(0, 1<<20); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{0x78, 0x56, 0x34, 0x12}, 1<<18)) {
		t.Errorf("%x…, %v", got[:8], err)
	}
	for name, d10 := range map[string]uint32{
		"no action": 0, "cryptographic erase": uint32(nvme.SanitizeCryptoErase), "no such action": 7,
		"block erase that keeps": uint32(nvme.SanitizeBlockErase) | nvme.SanitizeNoDeallocate,
	} {
		if err := h.sanitize(d10, 0); !errors.Is(err, nvme.InvalidField|nvme.DoNotRetry) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := h.sanitize(uint32(nvme.SanitizeExitFailure), 0); err != nil {
		t.Errorf("exit from no failure: %v", err)
	}
	l := r.lun()
	req := &initiator.Request{Op: initiator.OpCDB, CDB: []byte{0x48, 1, 0, 0, 0, 0, 0, 0, 5, 0}, Buf: []byte{1, 0, 0, 1, 0x55}}
	if err := l.Do(context.Background(), req); err != nil {
		t.Fatal(err)
	}
	if e := h.event(); e != nvme.EventSanitizeDone {
		t.Errorf("%v", e)
	}
	want := nvme.SanitizeLog{Progress: 0xFFFF, State: nvme.SanitizeDone, Passes: 1, Dword10: nvme.SanitizeDword10(nvme.SanitizeOverwrite, 1, 0)}
	if l := h.sanitizeLog(); l != want {
		t.Errorf("SCSI's: %+v", l)
	}
	r.stop()
	if l := kept(t, dir).attach(hostNQN, 10, 0).sanitizeLog(); l != want {
		t.Errorf("after a restart: %+v", l)
	}
}

// A sanitize that the end of its volume cuts short goes on when the volume is served again, with its subsystem or
// as a namespace that is added to one.
func TestSanitizeGoesOn(t *testing.T) {
	dir := t.TempDir()
	d, err := file.Open(file.Config{Path: filepath.Join(dir, "disk"), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	dev := faulty.New(d, 1)
	r := open(t, func(c *target.Config, s *nvmf.SubsystemConfig) {
		c.StateDir = dir
		s.Namespaces[0].Volume = dev
	})
	space := nvmf.NamespaceConfig{NSID: 1, Volume: dev}
	for i, again := range []func() error{
		func() error {
			return r.srv.AddSubsystem(nvmf.SubsystemConfig{NQN: subNQN, Namespaces: []nvmf.NamespaceConfig{space}})
		},
		func() error {
			return errors.Join(r.srv.AddSubsystem(nvmf.SubsystemConfig{NQN: subNQN}), r.srv.AddNamespace(subNQN, space))
		},
	} {
		dev.SetRules(faulty.Rule{Op: faulty.Write, Err: blockdev.ErrStopped, Times: 1}) // as if the volume had ended
		h := r.attach(hostNQN, 10, 0)
		if err := h.sanitize(nvme.SanitizeDword10(nvme.SanitizeOverwrite, 1, 0), uint32(i+1)*0x01010101); err != nil {
			t.Fatal(err)
		}
		await.True(t, "it is cut short", func() bool { return h.sanitizeLog().State == nvme.SanitizeBroken })
		if err := errors.Join(r.srv.RemoveSubsystem(t.Context(), subNQN), again()); err != nil {
			t.Fatal(err)
		}
		h = r.attach(hostNQN, 10, 0)
		await.True(t, "it has ended", func() bool { return h.sanitizeLog().State == nvme.SanitizeDone })
		got := make([]byte, 1<<20)
		if _, err := d.ReadAt(got, 0); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{byte(i + 1)}, 1<<20)) {
			t.Errorf("%x…, %v", got[:8], err)
		}
	}
}

// Who may not sanitize a namespace does not end its failed state either.
func TestSanitizeFailureIsLeft(t *testing.T) {
	var dev *faulty.Device
	r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
		dev = faulty.New(s.Namespaces[0].Volume, 1)
		s.Namespaces[0].Volume = dev
	})
	h, other := r.attach(hostNQN, 10, 1), r.attach("nqn.other", 11, 1)
	dev.SetRules(faulty.Rule{Op: faulty.Write, Err: blockdev.ErrMedium, Times: 1})
	if err := h.sanitize(nvme.SanitizeDword10(nvme.SanitizeOverwrite, 1, nvme.SanitizeUnrestricted), 1); err != nil {
		t.Fatal(err)
	}
	if h.event(); h.sanitizeLog().State != nvme.SanitizeBroken {
		t.Fatalf("%+v", h.sanitizeLog())
	}
	q := h.io[0]
	if err := errors.Join(q.reserve(nvme.OpReservationRegister, nvme.RegisterKey, 0, false, 0, 1), q.reserve(nvme.OpReservationAcquire, nvme.AcquireReservation, nvme.WriteExclusive, false, 1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := other.sanitize(uint32(nvme.SanitizeExitFailure), 0); !errors.Is(err, nvme.ReservationConflict|nvme.DoNotRetry) || h.sanitizeLog().State != nvme.SanitizeBroken {
		t.Errorf("another host than the holder: %v, %+v", err, h.sanitizeLog())
	}
	if err := h.sanitize(uint32(nvme.SanitizeExitFailure), 0); err != nil || h.sanitizeLog().State != nvme.SanitizeNever {
		t.Errorf("the holder: %v, %+v", err, h.sanitizeLog())
	}
}

// Sanitize concerns every namespace, and while it runs nobody reads or writes any.
func TestSanitizeAll(t *testing.T) {
	slow := &slowZeroes{Device: newMem(t, 1<<20), gate: make(chan struct{})}
	r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
		s.Namespaces = append(s.Namespaces, nvmf.NamespaceConfig{NSID: 2, Volume: slow})
	})
	h := r.attach(hostNQN, 10, 1)
	q := h.io[0]
	if err := q.write(0, pattern(4096, 1)); err != nil {
		t.Fatal(err)
	}
	if err := h.sanitize(uint32(nvme.SanitizeOverwrite)|1<<4, 0); err != nil {
		t.Fatal(err)
	}
	s := rw(nvme.OpRead, 0, 1)
	s.SetNSID(2)
	if _, err := q.do(s, make([]byte, 512), nil); !errors.Is(err, nvme.SanitizeInProgress) {
		t.Errorf("a read meanwhile: %v", err)
	}
	if err := h.sanitize(uint32(nvme.SanitizeOverwrite), 0); !errors.Is(err, nvme.SanitizeInProgress) {
		t.Errorf("another one meanwhile: %v", err)
	}
	if l := h.sanitizeLog(); l.State != nvme.SanitizeRuns || l.Progress == 0xFFFF {
		t.Errorf("meanwhile: %+v", l)
	}
	close(slow.gate)
	await.True(t, "the end of the sanitize", func() bool { return h.sanitizeLog().State == nvme.SanitizeDone })
	if b, err := q.readBlocks(0, 4096); err != nil || !bytes.Equal(b, make([]byte, 4096)) {
		t.Errorf("namespace 1 is as it was: %v", err)
	}
}

// What keeps a sanitize from one namespace keeps it from all: none has begun by then.
func TestSanitizeAllOrNone(t *testing.T) {
	r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
		s.Namespaces = append(s.Namespaces, nvmf.NamespaceConfig{NSID: 2, Volume: newMem(t, 1<<20)})
	})
	h, other := r.attach(hostNQN, 10, 1), r.attach("nqn.other", 11, 1).io[0]
	reserve := func(op nvme.Opcode, action uint8, kind nvme.ReservationType, keys ...uint64) {
		s := sqe(func(s *nvme.SQE) { s.NewReservation(op, 2, action, kind, false) })
		if _, err := other.do(s, nil, nvme.AppendKeys(nil, keys...)); err != nil {
			t.Fatal(err)
		}
	}
	reserve(nvme.OpReservationRegister, nvme.RegisterKey, 0, 0, 1)
	reserve(nvme.OpReservationAcquire, nvme.AcquireReservation, nvme.WriteExclusive, 1, 0)
	if err := h.io[0].write(0, pattern(4096, 1)); err != nil {
		t.Fatal(err)
	}
	if err := h.sanitize(uint32(nvme.SanitizeOverwrite)|1<<4, 0); !errors.Is(err, nvme.ReservationConflict|nvme.DoNotRetry) {
		t.Errorf("namespace 2 is reserved: %v", err)
	}
	if b, err := h.io[0].readBlocks(0, 4096); err != nil || !bytes.Equal(b, pattern(4096, 1)) {
		t.Errorf("namespace 1 is not as it was: %v", err)
	}
}

// slowZeroes writes when gate is closed.
type slowZeroes struct {
	blockdev.Device
	gate chan struct{}
}

func (d *slowZeroes) WriteAt(p []byte, off int64) (int, error) {
	<-d.gate
	return d.Device.WriteAt(p, off)
}

// protect sets or lifts the write protection of namespace 1.
func (h *host) protect(v uint32) (*nvme.CQE, error) {
	var s nvme.SQE
	s.NewSetFeatures(nvme.FeatureWriteProtect, 1, v)
	return h.do(s, nil, nil)
}

func (h *host) protected() uint64 {
	h.t.Helper()
	var s nvme.SQE
	s.NewGetFeatures(nvme.FeatureWriteProtect, 1)
	e, err := h.do(s, nil, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	return e.Result()
}

// Write protection holds on every wire and across a restart, hosts are told, and a
// reservation stands against it.
func TestWriteProtect(t *testing.T) {
	dir := t.TempDir()
	r := kept(t, dir)
	l := r.lun()
	h := r.attach(hostNQN, 10, 1)
	other := r.attach("nqn.other", 11, 0)
	var s nvme.SQE
	s.NewSetFeatures(nvme.FeatureAsyncEvents, 0, nvme.NoticeNamespace)
	if _, err := other.do(s, nil, nil); err != nil {
		t.Fatal(err)
	}
	block := pattern(512, 1)
	if _, err := h.protect(1); err != nil {
		t.Fatal(err)
	}
	if e := other.event(); e != nvme.EventNamespaceChanged {
		t.Errorf("%v", e)
	}
	if err := h.io[0].write(0, block); !errors.Is(err, nvme.NamespaceWriteProtect|nvme.DoNotRetry) {
		t.Errorf("a write: %v", err)
	}
	if _, err := l.WriteAt(block, 0); err == nil {
		t.Error("SCSI writes")
	}
	if n, err := nvme.ParseNamespace(h.identify(nvme.CNSNamespace, 1)); err != nil || n.NSATTR != nvme.NamespaceProtected || h.protected() != 1 {
		t.Errorf("%+v, %v", n, err)
	}
	var f nvme.SQE
	f.NewFormat(1, 0)
	if _, err := h.do(f, nil, nil); !errors.Is(err, nvme.NamespaceWriteProtect|nvme.DoNotRetry) {
		t.Errorf("format: %v", err)
	}
	if err := h.sanitize(uint32(nvme.SanitizeOverwrite), 0); !errors.Is(err, nvme.NamespaceWriteProtect|nvme.DoNotRetry) {
		t.Errorf("sanitize: %v", err)
	}
	if _, err := h.protect(2); !errors.Is(err, nvme.InvalidField|nvme.DoNotRetry) {
		t.Errorf("until power is lost: %v", err)
	}
	r.stop()
	r = kept(t, dir)
	h = r.attach(hostNQN, 10, 1)
	if err := h.io[0].write(0, block); !errors.Is(err, nvme.NamespaceWriteProtect|nvme.DoNotRetry) {
		t.Errorf("after a restart: %v", err)
	}
	if _, err := h.protect(0); err != nil {
		t.Fatal(err)
	}
	if err := h.io[0].write(0, block); err != nil {
		t.Error(err)
	}
	a := r.attach("nqn.other", 11, 1)
	if err := a.io[0].reserve(nvme.OpReservationRegister, nvme.RegisterKey, 0, false, 0, 1); err != nil {
		t.Fatal(err)
	}
	if err := a.io[0].reserve(nvme.OpReservationAcquire, nvme.AcquireReservation, nvme.WriteExclusive, false, 1, 0); err != nil {
		t.Fatal(err)
	}
	conflict := nvme.ReservationConflict | nvme.DoNotRetry
	if _, err := h.protect(1); !errors.Is(err, conflict) {
		t.Errorf("protection against a reservation: %v", err)
	}
	if _, err := h.do(f, nil, nil); !errors.Is(err, conflict) {
		t.Errorf("format against a reservation: %v", err)
	}
	if err := h.sanitize(uint32(nvme.SanitizeOverwrite), 0); !errors.Is(err, conflict) {
		t.Errorf("sanitize against a reservation: %v", err)
	}
	for _, nsid := range []uint32{1, nvme.NSIDAll} {
		if _, err := h.io[0].do(sqe(func(s *nvme.SQE) { s.Init(nvme.OpFlush, nsid) }), nil, nil); !errors.Is(err, conflict) {
			t.Errorf("Flush of %#x against a reservation: %v", nsid, err)
		}
	}
}

// stop ends the target, as a restart begins.
func (r *rig) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r.srv.Shutdown(ctx)
	r.vol.Close()
}
