package inorder

import (
	"slices"
	"sync"
	"testing"

	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// Events are told one at a time, in the order in which they were put, whoever tells them.
func TestOrder(t *testing.T) {
	var mu sync.Mutex // of those who know
	var told []int    // the race detector sees whether somebody is told beside another one
	next := 0
	tell := New(func(n int) { told = append(told, n) })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				mu.Lock()
				tell.Put(next)
				next++
				mu.Unlock()
				tell.Tell()
			}
		})
	}
	wg.Wait()
	tell.Wait()
	if len(told) != next || !slices.IsSorted(told) {
		t.Errorf("%d of %d events, in order %v", len(told), next, slices.IsSorted(told))
	}
}

// Who is told may cause something, and nobody who tells beside him waits.
func TestTellWithinAndBeside(t *testing.T) {
	var told []int
	var tell *Teller[int]
	entered, release := make(chan struct{}), make(chan struct{})
	tell = New(func(n int) {
		told = append(told, n)
		if n == 0 {
			tell.Put(1)
			tell.Tell()
			close(entered)
			<-release
		}
	})
	tell.Put(0)
	var wg sync.WaitGroup
	wg.Go(tell.Tell)
	<-entered
	tell.Put(2)
	tell.Tell() // returns
	close(release)
	tell.Wait()
	wg.Wait()
	if want := []int{0, 1, 2}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
	New[int](nil).Put(1)
}
