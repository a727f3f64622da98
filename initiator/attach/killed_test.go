package attach

import (
	"encoding/json"
	"errors"
	"testing"

	"softiser/initiator/blockio"
)

// The process of an ublk device is killed. Whoever takes the device finds by the record whether the target has lost
// its cache meanwhile, or had before and the device has not been told: then a flush fails, once.
func TestKilledAndCacheLost(t *testing.T) {
	l := &fakeLUN{data: make([]byte, 1<<20), cached: true}
	a := newAttachment(options(t, l))
	a.lun = l
	one, two := [16]byte{1}, [16]byte{2}
	path := a.nexus.Cache.Enter(one)
	a.client = a.nexus.Cache.NewFlusher()
	next := func(now [16]byte) (first, second error) { // flushes from the device, in the next process
		t.Helper()
		a.noteCaches(&a.Record)
		b, err := json.Marshal(&a.Record)
		var r Record
		if err = errors.Join(err, json.Unmarshal(b, &r)); err != nil {
			t.Fatal(err)
		}
		c := r.cache()
		e, client := c.Enter(now), c.NewFlusher()
		c.Only(e)
		flush := func() error { f := e.Begin(client); return f.End(true) }
		return flush(), flush()
	}
	expect := func(when string, now [16]byte, lost bool) {
		t.Helper()
		if first, second := next(now); errors.Is(first, blockio.ErrCacheLost) != lost || !lost && first != nil || second != nil {
			t.Errorf("%s: %v, %v", when, first, second)
		}
	}
	expect("the cache is as it was", one, false)
	expect("it was lost after the process", two, true)
	path.Wrote(nil)
	path, _ = path.Look(two)
	expect("it was lost before that, and nobody had been told", two, true)
	f := path.Begin(a.client)
	if err := f.End(true); !errors.Is(err, blockio.ErrCacheLost) {
		t.Error(err)
	}
	expect("the device had been told", two, false)
	// A target that does not tell lives of its cache is taken at its word.
	a.nexus.Cache = new(blockio.Cache)
	a.nexus.Cache.Enter([16]byte{})
	a.client = a.nexus.Cache.NewFlusher()
	expect("nothing is told", [16]byte{}, false)
}
