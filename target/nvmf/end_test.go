package nvmf_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/target"
	"softiser/target/nvmf"
)

// slow makes the rate limit hold back every command behind the first two: the second
// leaves a debt.
func slow(_ *target.Config, s *nvmf.SubsystemConfig) {
	s.Namespaces[0].QoS.IOPS, s.Namespaces[0].QoS.BurstIOs = 0.001, 1
}

// Abort ends a command that waits, and says when there is nothing to end.
func TestAbort(t *testing.T) {
	r := open(t, slow)
	h := r.attach(hostNQN, 10, 1)
	q := h.io[0]
	for range 2 {
		if err := q.write(0, pattern(512, 1)); err != nil {
			t.Fatal(err)
		}
	}
	held := q.start(rw(nvme.OpWrite, 0, 1), nil, pattern(512, 2))
	abort := func(cid uint16) uint32 {
		t.Helper()
		var s nvme.SQE
		s.Init(nvme.AdminAbort, 0)
		s.SetCDW(10, 1|uint32(cid)<<16)
		e, err := h.do(s, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return e.DW0() & 1
	}
	if abort(77) != 1 {
		t.Error("a command that is not there was aborted")
	}
	for abort(q.cids) != 0 { // it may not have arrived yet: it comes by another connection
		select {
		case <-held.done:
			t.Fatal("the command was not held back")
		default:
		}
	}
	e, err := q.result(held)
	if err != nil || e.Status() != nvme.AbortRequested {
		t.Errorf("%v, %v", e, err)
	}
}

// What a host has sent and has not been carried out ends with it.
func TestCommandsEndWithTheirHost(t *testing.T) {
	r := open(t, slow)
	h := r.attach(hostNQN, 10, 1)
	for range 2 {
		if err := h.io[0].write(0, pattern(512, 1)); err != nil {
			t.Fatal(err)
		}
	}
	held := h.io[0].start(rw(nvme.OpWrite, 0, 1), nil, pattern(512, 2))
	h.nc.Close()
	if _, err := h.io[0].result(held); !errors.Is(err, errGone) {
		t.Error(err)
	}
	if err := r.srv.RemoveSubsystem(context.Background(), subNQN); err != nil { // waits for every command
		t.Fatal(err)
	}
	got := make([]byte, 512)
	if _, err := r.vol.ReadAt(got, 0); err != nil || string(got) != string(pattern(512, 1)) {
		t.Errorf("the write of a host that is gone took effect: %v", err)
	}
}

// A drain answers what is under way and does not wait for event requests.
func TestDrain(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 2)
	var s nvme.SQE
	s.Init(nvme.AdminAsyncEvent, 0)
	h.start(s, nil, nil)
	if err := h.io[0].write(0, pattern(4096, 1)); err != nil {
		t.Fatal(err)
	}
	h.property(nvme.PropCSTS)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	gone := make(chan struct{})
	go func() { // a host closes when the controller does
		defer close(gone)
		for _, q := range append(h.io, h.queue) {
			q.close()
		}
	}()
	if err := r.srv.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	<-gone
}

// No subsystem can be served twice, nor one with mistakes in it.
func TestSubsystemRefused(t *testing.T) {
	r := open(t, nil)
	for name, c := range map[string]nvmf.SubsystemConfig{
		"the same name":      {NQN: subNQN},
		"no name":            {},
		"the discovery name": {NQN: nvme.DiscoveryNQN},
		"namespace 0":        {NQN: "nqn.x", Namespaces: []nvmf.NamespaceConfig{{NSID: 0, Volume: r.vol}}},
		"namespace 1025":     {NQN: "nqn.x", Namespaces: []nvmf.NamespaceConfig{{NSID: 1025, Volume: r.vol}}},
		"no volume":          {NQN: "nqn.x", Namespaces: []nvmf.NamespaceConfig{{NSID: 1}}},
		"a namespace twice":  {NQN: "nqn.x", Namespaces: []nvmf.NamespaceConfig{{NSID: 1, Volume: r.vol}, {NSID: 1, Volume: r.vol}}},
		"a host pattern":     {NQN: "nqn.x", Hosts: []nvmf.HostRule{{NQN: "["}}},
		"controller ids":     {NQN: "nqn.x", MinCntlID: 5, MaxCntlID: 4},
		"a long serial":      {NQN: "nqn.x", Serial: "123456789012345678901"},
	} {
		if err := r.srv.AddSubsystem(c); err == nil {
			t.Errorf("%s: is served", name)
		}
	}
	// Nothing of what was refused holds the volume.
	if err := r.srv.RemoveSubsystem(context.Background(), subNQN); err != nil {
		t.Fatal(err)
	}
}

// A removal that storage holds up says so, and is waited for by another one.
func TestRemovalWaitsForStorage(t *testing.T) {
	var dev *faulty.Device
	r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
		dev = faulty.New(s.Namespaces[0].Volume, 1)
		s.Namespaces[0].Volume = dev
	})
	h := r.attach(hostNQN, 10, 1)
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	defer release() // the end of the server waits for storage
	dev.SetRules(faulty.Rule{Op: faulty.Flush, Hold: held})
	var s nvme.SQE
	s.Init(nvme.OpFlush, 1)
	h.io[0].start(s, nil, nil)
	await.True(t, "the flush is held", func() bool { return dev.Held() == 1 })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 2 {
		if err := r.srv.RemoveSubsystem(ctx, subNQN); !errors.Is(err, target.ErrVolumesHeld) {
			t.Fatalf("a removal with a command that storage holds: %v", err)
		}
		if err := r.srv.AddSubsystem(nvmf.SubsystemConfig{NQN: subNQN}); !errors.Is(err, target.ErrVolumesHeld) {
			t.Fatalf("another one of its name: %v", err)
		}
	}
	release()
	if err := r.srv.RemoveSubsystem(context.Background(), subNQN); err != nil {
		t.Fatal(err)
	}
	if err := r.srv.RemoveSubsystem(context.Background(), subNQN); err == nil {
		t.Error("the subsystem is still there")
	}
}

// Whoever removes a namespace whose last flush fails is told.
func TestRemovalTellsOfAFailedFlush(t *testing.T) {
	var dev *faulty.Device
	r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
		dev = faulty.New(s.Namespaces[0].Volume, 1)
		s.Namespaces[0].Volume = dev
	})
	if err := r.attach(hostNQN, 10, 1).io[0].write(0, pattern(4096, 1)); err != nil {
		t.Fatal(err)
	}
	dev.SetRules(faulty.Rule{Op: faulty.Flush, Err: &blockdev.Error{Kind: blockdev.ErrMedium}, Times: 1})
	if err := r.srv.RemoveNamespace(t.Context(), subNQN, 1); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("removed with %v", err)
	}
}

// What hosts can make the target hold has one bound, long answers included; a command that
// finds no room is tried again.
func TestAnswersAreBounded(t *testing.T) {
	pool, err := blockdev.NewPool(16 << 20)
	if err != nil {
		t.Fatal(err)
	}
	r := open(t, func(c *target.Config, _ *nvmf.SubsystemConfig) { c.Staging = pool })
	h := r.attach(hostNQN, 10, 1)
	full := int(pool.Cap() / 2)
	// What Connect brought is given back when its answer has gone, which the host may
	// see before.
	await.True(t, "the pool is empty", func() bool { return pool.Reserve(full) })
	var page, report nvme.SQE
	page.NewGetLogPage(nvme.LogSMART, nvme.NSIDAll, 0, 4<<20)
	report.NewReservationReport(1, 1<<20)
	if _, err := h.do(page, make([]byte, 4<<20), nil); !errors.Is(err, nvme.CommandInterrupted) {
		t.Errorf("log page: %v", err)
	}
	if _, err := h.io[0].do(report, make([]byte, 1<<20), nil); !errors.Is(err, nvme.CommandInterrupted) {
		t.Errorf("reservation report: %v", err)
	}
	pool.Unreserve(full)
	if _, err := h.do(page, make([]byte, 4<<20), nil); err != nil {
		t.Errorf("with room: %v", err)
	}
	if _, err := h.io[0].do(report, make([]byte, 1<<20), nil); err != nil {
		t.Errorf("with room: %v", err)
	}
	await.True(t, "the memory is given back", func() bool { return pool.Reserved() == 0 })
}
