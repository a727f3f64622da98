package target_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"softiser/blockdev/faulty"
	"softiser/internal/await"
	"softiser/internal/spc"
)

// TestSettle: sessions go on while a step of a rewrite takes long, which Settle waits for; in vain if time
// is short, and then the rewrite goes on. One that begins after Settle rests until the server goes on.
func TestSettle(t *testing.T) {
	s := serveStallable(t, "mem", nil)
	p := mustLogIn(t, s.addr, stalledTarget, 1, 0, 1)
	overwrite := func() {
		t.Helper()
		p.do(0, []byte{0x48, 0x81, 0, 0, 0, 0, 0, 0, 5, 0}, []byte{1, 0, 0, 1, 0x55}, 0).good() // SANITIZE
	}
	runs := func() bool {
		status, sense := p.do(0, spc.AppendTestUnitReady(nil), nil, 0).status()
		return status != 0 && sense == 0x02041B
	}
	read := func() { p.do(1, spc.AppendRead(nil, 0, 8, false), nil, 4096).good() }

	release := sync.OnceFunc(s.vol.stall(faulty.Write | faulty.Lease))
	defer release()
	overwrite()
	await.True(t, "its first step is under way", func() bool { return s.vol.below.Held() > 0 })
	if err := s.Settle(over()); err == nil || !strings.Contains(err.Error(), "has not come to rest") || !strings.Contains(err.Error(), stalledTarget) {
		t.Fatal(err)
	}
	settled := make(chan error, 1)
	go func() { settled <- s.Settle(context.Background()) }()
	for range 20 {
		read()
	}
	if len(settled) > 0 {
		t.Fatalf("nothing was waited for: %v", <-settled)
	}
	release()
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	s.Unsettle()
	await.True(t, "the sanitize ends", func() bool { return !runs() })
	p.ready(0)

	if err := s.Settle(context.Background()); err != nil {
		t.Fatal(err)
	}
	overwrite()
	read()
	if err := s.Freeze(context.Background()); err != nil {
		t.Fatal(err)
	}
	s.Thaw()
	await.True(t, "the sanitize ends", func() bool { return !runs() })
}
