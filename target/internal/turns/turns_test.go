package turns

import (
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func from(n byte) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 32) }

// However much one origin asks for, another waits for one piece of it and no more.
func TestInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(1)
		var mu sync.Mutex
		var order []byte
		piece := func(n byte) func() {
			return func() {
				time.Sleep(time.Second)
				mu.Lock()
				order = append(order, n)
				mu.Unlock()
			}
		}
		for range 5 {
			p.Do(from(1), piece(1))
		}
		p.Do(from(2), piece(2))
		p.Do(from(3), piece(3))
		if s := p.Stats(); s.Waiting < 6 {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if want := []byte{1, 2, 3, 1, 1, 1, 1}; !slices.Equal(order, want) && !slices.Equal(order, []byte{1, 1, 2, 3, 1, 1, 1}) {
			t.Errorf("order %v, want %v", order, want)
		}
		if s := p.Stats(); s != (Stats{Done: 7, Most: 1, Workers: 1}) {
			t.Errorf("%+v", s)
		}
		if len(p.origins) != 0 || p.running != 0 {
			t.Errorf("%d origins, %d goroutines are left", len(p.origins), p.running)
		}
	})
}

// One origin never has all workers.
func TestShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(4)
		for range 20 {
			p.Do(from(1), func() { time.Sleep(time.Second) })
		}
		synctest.Wait()
		if s := p.Stats(); s.Most != 2 || s.Waiting != 18 {
			t.Errorf("%+v: one origin has 2 of 4 workers", s)
		}
		start := time.Now()
		served := make(chan time.Duration, 1)
		p.Do(from(2), func() { served <- time.Since(start) })
		if waited := <-served; waited != 0 {
			t.Errorf("another origin has waited for %v", waited)
		}
		time.Sleep(time.Minute)
		if s := p.Stats(); s.Done != 21 || s.Waiting != 0 || s.Most != 3 {
			t.Errorf("%+v", s)
		}
	})
}
