package nvmf_test

import (
	"errors"
	"sync"
	"testing"

	"softiser/blockdev"
	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/target"
	"softiser/target/nvmf"
)

// flushedByHand is a device whose flushes a test ends one by one, until it lets them go.
type flushedByHand struct {
	blockdev.Device
	begun chan struct{}
	end   chan error
	free  chan struct{}
	letGo func()
}

func (d *flushedByHand) Flush() error {
	select {
	case d.begun <- struct{}{}:
	case <-d.free:
		return nil
	}
	select {
	case err := <-d.end:
		return err
	case <-d.free:
		return nil
	}
}

// byHand serves namespaces 1 and 2, the second of a device that is flushed by hand.
func byHand(t *testing.T) (*rig, *flushedByHand) {
	t.Helper()
	d := &flushedByHand{Device: newMem(t, 1<<20), begun: make(chan struct{}), end: make(chan error), free: make(chan struct{})}
	d.letGo = sync.OnceFunc(func() { close(d.free) })
	r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
		s.Namespaces = append(s.Namespaces, nvmf.NamespaceConfig{NSID: 2, Volume: d})
	})
	t.Cleanup(d.letGo) // before the target ends
	return r, d
}

var (
	enabled  = nvme.NewConfig(nvme.CommandSetAll, true)
	disabled = nvme.NewConfig(nvme.CommandSetAll, false)
	shutDown = enabled.WithShutdown(nvme.ShutdownNormal)
)

// configure writes CC.
func (h *host) configure(c nvme.Config) {
	h.t.Helper()
	var s nvme.SQE
	s.NewPropertySet(nvme.PropCC, uint64(c))
	if _, err := h.do(s, nil, nil); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) csts() nvme.CtrlStatus { return nvme.CtrlStatus(h.property(nvme.PropCSTS)) }

// TestShutdown: a shutdown is complete when every namespace has been flushed, and not before: a host may
// take the power away then. The controller answers meanwhile.
func TestShutdown(t *testing.T) {
	r, d := byHand(t)
	h := r.attach(hostNQN, 10, 1)
	h.configure(shutDown)
	<-d.begun
	for _, c := range []nvme.Config{shutDown, enabled.WithShutdown(nvme.ShutdownAbrupt)} { // the second changes nothing
		if h.configure(c); h.csts() != nvme.StatusShuttingDown {
			t.Errorf("CSTS %x", h.csts())
		}
	}
	if _, err := h.io[0].readBlocks(0, 512); !errors.Is(err, nvme.CommandSequenceError|nvme.DoNotRetry) {
		t.Errorf("a read during a shutdown: %v", err)
	}
	// However many hosts shut down meanwhile, they share one flush more.
	others := []*host{r.attach(hostNQN, 11, 0), r.attach(hostNQN, 12, 0), r.attach(hostNQN, 13, 0)}
	for _, o := range others {
		o.configure(shutDown)
	}
	others[0].close() // does not wait for it
	await.True(t, "its controller has ended", func() bool { return len(r.srv.Controllers()) == 3 })
	d.end <- nil
	h.shutdownDone()
	<-d.begun
	for _, o := range others[1:] {
		if o.csts() != nvme.StatusShuttingDown {
			t.Errorf("CSTS %x", o.csts())
		}
	}
	d.end <- blockdev.ErrInactive // the volume is another node's now, and was flushed when it went
	for _, o := range others[1:] {
		o.shutdownDone()
	}
}

// TestShutdownFails: a shutdown whose flush has failed is never complete, in the next process neither. A
// reset ends it.
func TestShutdownFails(t *testing.T) {
	r, d := byHand(t)
	h := r.attach(hostNQN, 10, 0)
	h.configure(shutDown)
	<-d.begun
	d.end <- blockdev.ErrMedium
	await.True(t, "the status is fatal", func() bool { return h.csts().Fatal() })
	d.letGo()
	failed := nvme.StatusShuttingDown | nvme.StatusFatal
	if st := h.csts(); st != failed {
		t.Errorf("CSTS %x", st)
	}
	now := open(t, nil)
	k, left := r.carried()
	if len(k.NVMe.Controllers) != 1 {
		t.Fatalf("%+v, %q", k.NVMe, left)
	}
	if err := now.srv.Adopt(&k); err != nil {
		t.Fatal(err)
	}
	if st := h.csts(); st != failed {
		t.Errorf("CSTS %x in the next process", st)
	}
	if h.configure(disabled); h.csts() != 0 {
		t.Errorf("CSTS %x after a reset", h.csts())
	}
	h.enable()
	h.configure(shutDown) // with the namespace that is there
	h.shutdownDone()
	h.hangUp()
	r.srv.Thaw()
}

// TestShutdownGivenUp: the end of a flush is nothing to a controller that has been reset meanwhile, or
// whose host has begun another shutdown.
func TestShutdownGivenUp(t *testing.T) {
	for name, meanwhile := range map[string][]nvme.Config{
		"a reset":          {disabled, enabled},
		"another shutdown": {enabled, shutDown},
	} {
		r, d := byHand(t)
		h, other := r.attach(hostNQN, 10, 0), r.attach(hostNQN, 11, 0)
		h.configure(shutDown)
		<-d.begun
		for _, c := range meanwhile {
			h.configure(c)
		}
		was := h.csts()
		other.configure(shutDown)
		d.end <- nil
		<-d.begun // of the next flush
		if st := h.csts(); st != was || st.ShutdownDone() {
			t.Errorf("%s: CSTS was %x, and is %x when the first flush has ended", name, was, st)
		}
		d.end <- nil
		other.shutdownDone()
		if !was.Ready() {
			h.shutdownDone()
		} else if st := h.csts(); st != was {
			t.Errorf("%s: CSTS was %x, and is %x when all is flushed", name, was, st)
		}
	}
}
