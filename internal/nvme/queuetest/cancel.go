package queuetest

import (
	"bytes"
	"errors"
	"runtime"
	"testing"

	"softiser/internal/nvme"
)

// A cancelled transfer lets go of its memory before Cancel returns, whether the host has
// been asked or not; its command is answered and the queue goes on. No other command's
// transfer is touched.
func testCancel(t *testing.T, pair Pair) {
	mem := make([]byte, 1<<20)
	q, d := open(t, pair, 0, mem)
	held := holding(d)
	for round := range 4 {
		q.H.Submit(q.Set(0, nvme.OpWrite, 0, Pattern(len(mem), 7)))
		q.H.Push()
		k := recv(t, "the command", held)
		arrived := make(chan error, 1)
		d.Get(k, [][]byte{mem}, func(err error) { arrived <- err })
		if round%2 == 1 {
			// Nothing of it can have arrived: the host's connection may be slow, but that
			// it is asked is enough for the transport.
			d.C.Push()
		}
		if round < 2 {
			d.C.Cancel(k.Use + 1)
			select {
			case err := <-arrived: // in full, perhaps, where the host has been asked
				if errors.Is(err, nvme.ErrCancelled) {
					t.Fatal("the transfer of another command was cancelled")
				}
			default:
			}
		}
		d.C.Cancel(k.Use)
		d.Fence()
		clear(mem)
		d.C.Cancel(k.Use) // there is none any more
		d.Respond(k, nvme.AbortRequested)
		d.C.Push()
		if c := q.Wait(); c.CQE.Status() != nvme.AbortRequested {
			t.Fatal(c.CQE.Status())
		}
		d.Hold(nil)
		if s, err := q.Do(q.Set(1, nvme.OpWrite, 100, Pattern(9000, 8))); !s.OK() || err != nil {
			t.Fatalf("the command behind it: %v, %v", s, err)
		}
		d.Fence()
		if !bytes.Equal(mem[100:9100], Pattern(9000, 8)) || mem[99] != 0 || !bytes.Equal(mem[9100:], make([]byte, len(mem)-9100)) {
			t.Error("the memory was written to after Cancel")
		}
		clear(mem)
		held = holding(d)
	}
	q.Close(d)
}

// Transfers are cancelled somewhere in their middle: DataArrived comes once, and behind
// Cancel the memory is as it was left.
func testCancelAmid(t *testing.T, pair Pair) {
	mem := make([]byte, 1<<20)
	q, d := open(t, pair, 0, nil)
	held := holding(d)
	data := Pattern(len(mem), 9)
	cancelled := 0
	for round := range 40 {
		q.H.Submit(q.Set(0, nvme.OpWrite, 0, data))
		q.H.Push()
		k := recv(t, "the command", held)
		arrived := make(chan error, 2)
		d.Get(k, [][]byte{mem[:1000], mem[1000:]}, func(err error) { arrived <- err })
		d.C.Push()
		for range round * round / 2 { // somewhere on the way
			runtime.Gosched()
		}
		d.C.Cancel(k.Use)
		err := recv(t, "DataArrived", arrived)
		clear(mem)
		if errors.Is(err, nvme.ErrCancelled) {
			cancelled++
		} else if err != nil {
			t.Fatal(err)
		}
		d.Respond(k, nvme.AbortRequested)
		d.C.Push()
		q.Wait()
		q.H.Submit(q.Set(1, nvme.OpFlush, 0)) // all that was sent for it has been received
		q.H.Push()
		d.Respond(recv(t, "the flush", held), nvme.Success)
		d.C.Push()
		q.Wait()
		if len(arrived) != 0 || !bytes.Equal(mem, make([]byte, len(mem))) {
			t.Fatal("something came behind Cancel")
		}
	}
	if cancelled == 0 {
		t.Error("no transfer was cancelled")
	}
	q.Close(d)
}
