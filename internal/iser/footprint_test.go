package iser

import (
	"runtime"
	"testing"
)

// An idle connection's share of the heap stays within its budget, on both ends
// together.
func TestIdleFootprint(t *testing.T) {
	if testing.Short() {
		t.Skip("opens many connections")
	}
	const n = 32
	di, dt := device(t), device(t)
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	pair := pairWith(di, dt, ConnConfig{}, ConnConfig{})
	var ends []*Conn
	before := heap()
	for range n {
		i, g := pair(t)
		ends = append(ends, i.(*Conn), g.(*Conn))
	}
	each := (heap() - before) / (2 * n)
	t.Logf("%d KiB per idle end of a connection", each>>10)
	if each > 256<<10 {
		t.Errorf("%d KiB per idle end of a connection; the budget is 256", each>>10)
	}
	for _, c := range ends {
		c.Terminate(nil)
	}
	for _, c := range ends {
		<-c.Ended()
	}
}
