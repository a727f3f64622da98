package rdma_test

import (
	"errors"
	"sync"
	"testing"

	"softiser/rdma"
)

// Nothing is made from what has ended, and what is used does not end.
func TestWhatHasEndedMakesNothing(t *testing.T) {
	d, err := rdma.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pd, err := d.AllocPD()
	must(err)
	cq, err := d.CreateCQ(rdma.CQConfig{})
	must(err)
	srq, err := pd.CreateSRQ(rdma.SRQConfig{})
	must(err)
	goneCQ, err := d.CreateCQ(rdma.CQConfig{})
	must(err)
	must(goneCQ.Close())
	goneSRQ, err := pd.CreateSRQ(rdma.SRQConfig{})
	must(err)
	must(goneSRQ.Close())
	for what, cfg := range map[string]rdma.QPConfig{
		"send queue": {SendCQ: goneCQ, RecvCQ: cq}, "receive queue": {SendCQ: cq, RecvCQ: goneCQ}, "shared queue": {SendCQ: cq, RecvCQ: cq, SRQ: goneSRQ},
	} {
		if _, err := pd.CreateQP(cfg); !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("a queue pair on a closed %s: %v", what, err)
		}
	}
	if err := pd.Dealloc(); !errors.Is(err, rdma.ErrBusy) {
		t.Errorf("end of a domain with a shared receive queue: %v", err)
	}
	must(srq.Close())
	must(pd.Dealloc()) // the refused ones use nothing
	for what, f := range map[string]func() error{
		"MR":     func() error { _, err := pd.RegMR(nil, 0); return err },
		"window": func() error { _, err := pd.AllocWindow(); return err },
		"SRQ":    func() error { _, err := pd.CreateSRQ(rdma.SRQConfig{}); return err },
		"QP":     func() error { _, err := pd.CreateQP(rdma.QPConfig{SendCQ: cq, RecvCQ: cq}); return err },
	} {
		if err := f(); !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("%s of a domain that has ended: %v", what, err)
		}
	}
	must(cq.Close()) // used by none of them
	must(d.Close())
	for what, f := range map[string]func() error{
		"PD": func() error { _, err := d.AllocPD(); return err },
		"CQ": func() error { _, err := d.CreateCQ(rdma.CQConfig{}); return err },
	} {
		if err := f(); !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("%s of a closed device: %v", what, err)
		}
	}
}

// Of a window that is made while its domain is ended, and of a domain while its device is, one
// is refused, whoever comes first.
func TestMakingMeetsEnding(t *testing.T) {
	for range 500 {
		d, err := rdma.Open(nil)
		if err != nil {
			t.Fatal(err)
		}
		pd, err := d.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var made error
		var w *rdma.Window
		wg.Go(func() { w, made = pd.AllocWindow() })
		ended := pd.Dealloc()
		wg.Wait()
		switch {
		case made == nil && errors.Is(ended, rdma.ErrBusy):
			w.Close()
			if err := pd.Dealloc(); err != nil {
				t.Fatal(err)
			}
		case errors.Is(made, rdma.ErrClosed) && ended == nil:
		default:
			t.Fatalf("the window: %v, the end of its domain: %v", made, ended)
		}
		wg.Go(func() { pd, made = d.AllocPD() })
		ended = d.Close()
		wg.Wait()
		switch {
		case made == nil && errors.Is(ended, rdma.ErrBusy):
			pd.Dealloc()
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		case errors.Is(made, rdma.ErrClosed) && ended == nil:
		default:
			t.Fatalf("the domain: %v, the end of its device: %v", made, ended)
		}
	}
}
