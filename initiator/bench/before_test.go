package bench

import (
	"context"
	"runtime/debug"
	"sync"
	"testing"

	"softiser/initiator/blockio"
	"softiser/internal/resident"
)

// TestNothingIsLeftForTheClock: when the first command is submitted, what logins have left behind
// has been collected, and the buffers are in memory.
func TestNothingIsLeftForTheClock(t *testing.T) {
	collections := func() int64 {
		var s debug.GCStats
		debug.ReadGCStats(&s)
		return s.NumGC
	}
	var (
		once          sync.Once
		opened, first int64
		there         bool
	)
	fake := newFake(t, 1<<20)
	fake.hook = func(r *blockio.Request) (bool, error) {
		once.Do(func() { first, there = collections(), resident.InMemory(r.Buf) })
		return false, nil
	}
	jobs := parseText(t, "[j]\nrw=randread\nbs=64k\niodepth=4\nnumber_ios=8")
	open := func(context.Context, string, OpenOptions) (LUN, error) {
		opened = collections()
		return fake, nil
	}
	if _, err := Run(t.Context(), jobs, Config{Open: open, URL: "fake://"}); err != nil {
		t.Fatal(err)
	}
	if first == opened {
		t.Error("the garbage of logins was left to be collected while commands are measured")
	}
	page, err := alignedMemory(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer freeMemory(page)
	if populate(page) != nil {
		t.Skip("this kernel gives memory only when it is used")
	}
	if !there {
		t.Error("the buffer of the first command was not in memory when it was submitted")
	}
}
