package iscsi

import (
	"runtime"
	"testing"
)

// An idle session takes at most 256 KiB, goroutine stacks and buffers included.
func TestIdleSessionMemory(t *testing.T) {
	s := serve(t, nil)
	measure := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	open := func(n, first int) {
		for i := range n {
			r := s.dial()
			r.isid[4], r.isid[5] = 7, byte(first+i)
			r.mustLogin(testIQN)
			r.ready()
			r.read10(0, 8)
		}
	}
	open(8, 0) // what every session shares
	before := measure()
	const n = 64
	open(n, 100)
	per := (int64(measure()) - int64(before)) / n
	t.Logf("%d bytes per idle session, the test's own initiator included", per)
	if per > 256<<10 {
		t.Errorf("an idle session takes %d bytes, more than 256 KiB", per)
	}
}
