package queuetest

import (
	"bytes"
	"errors"
	"testing"

	"softiser/internal/faultmap"
	"softiser/internal/nvme"
)

// faulty is 1 MiB of which all but the first 8 KiB faults.
func faulty(t testing.TB) []byte { return faultmap.New(t, 1<<20, 8<<10) }

// holding has the disk hold all commands, and returns where they are.
func holding(d *Disk) <-chan *nvme.Command {
	held := make(chan *nvme.Command, 4*Entries)
	d.Hold(func(k *nvme.Command) bool { held <- k; return true })
	return held
}

// Until SetEntries has said more there is room for one command. Who sends far more ends
// the connection; what has come up can be answered all the same.
func testRoom(t *testing.T, pair Pair) {
	var d *Disk
	var held <-chan *nvme.Command
	h := pair(t, 0, func(c Controller) {
		d = NewDisk(t, c, nil)
		held = holding(d)
		c.Start(d)
	})
	q := NewQueue(t, h, Entries)
	h.Start(q)
	for i := range Entries {
		h.Submit(q.Set(i, nvme.OpFlush, 0))
	}
	h.Push()
	if err := d.End(); !errors.Is(err, nvme.ErrBreach) {
		t.Errorf("the controller's side ended with %v", err)
	}
	if n, _ := d.Commands(); n == 0 || n > 2 {
		t.Errorf("%d commands came up", n)
	}
	d.answerAll(held)
	q.End()
}

// answerAll answers what is held when nothing more comes, and checks that it ends.
func (d *Disk) answerAll(held <-chan *nvme.Command) {
	for len(held) > 0 {
		d.Respond(<-held, nvme.Success)
	}
	d.C.Push()
	d.Empty()
}

// A slot that is in use is not used again: that is a mistake of the layer above, which
// the peer must not see.
func testSlotInUse(t *testing.T, pair Pair) {
	q, d := open(t, pair, 0, nil)
	held := holding(d)
	q.H.Submit(q.Set(3, nvme.OpFlush, 0))
	q.H.Push()
	k := recv(t, "the command", held)
	q.H.Submit(&nvme.HostCommand{Slot: 3})
	q.H.Push()
	if err := q.End(); !errors.Is(err, nvme.ErrHostSlot) {
		t.Errorf("the host's side ended with %v", err)
	}
	d.End()
	d.Respond(k, nvme.Success)
	d.C.Push()
	d.Empty()
}

// Terminate(nil) sends what is queued, and nothing behind it.
func testEndInOrder(t *testing.T, pair Pair) {
	mem := Pattern(1<<20, 5)
	q, d := open(t, pair, 0, mem)
	held := holding(d)
	got := make([]byte, len(mem))
	q.H.Submit(q.Set(0, nvme.OpRead, 0, got))
	q.H.Submit(q.Set(1, nvme.OpWrite, 0, make([]byte, 8192)))
	q.H.Push()
	first, second := recv(t, "the first command", held), recv(t, "the second command", held)
	d.Execute(first)
	d.C.Terminate(nil)
	if c := q.Wait(); c.Slot != 0 || !c.CQE.Status().OK() || !bytes.Equal(got, mem) {
		t.Errorf("slot %d: %v", c.Slot, c.CQE.Status())
	}
	if q.End(); q.Done() != 0 { // with nil or not: what it still waited for will not come
		t.Error("a command was completed that was not answered")
	}
	if err := d.End(); err != nil {
		t.Errorf("the controller's side ended with %v", err)
	}
	d.Respond(second, nvme.Success)
	d.C.Push()
	d.Empty()
	if err := d.C.GetData(second, 0, [][]byte{make([]byte, 1)}); err == nil {
		t.Error("a transfer begins after the end")
	}
	d.C.Cancel(second.Use)
	d.C.Terminate(errors.New("again"))
	q.H.Terminate(nil)
	q.H.Submit(q.Command(0)) // nothing happens
	q.H.Push()

	// What a host has queued goes out as well.
	q, d = open(t, pair, 4096, mem)
	held = holding(d)
	q.H.Submit(q.Set(0, nvme.OpWrite, 0, Pattern(4096, 6)))
	q.H.Terminate(nil)
	if k := recv(t, "the command", held); !bytes.Equal(k.Data, Pattern(4096, 6)) {
		t.Error("other data")
	} else {
		d.End()
		d.Respond(k, nvme.Success)
		d.C.Push()
		d.Empty()
	}
	if err := q.End(); err != nil {
		t.Errorf("the host's side ended with %v", err)
	}
}

// Terminate with a reason ends everything at once, whatever is going on: every transfer
// is told of it, no command is completed, and no memory is touched any more.
func testEndAtOnce(t *testing.T, pair Pair) {
	for _, who := range []string{"host", "controller"} {
		q, d := open(t, pair, 0, make([]byte, 1<<20))
		held := holding(d)
		room := bytes.Repeat([]byte{0xA5}, 1<<20)
		q.H.Submit(q.Set(0, nvme.OpWrite, 0, make([]byte, 1<<20)))
		q.H.Submit(q.Set(1, nvme.OpRead, 0, room))
		q.H.Push()
		write, read := recv(t, "the write", held), recv(t, "the read", held)
		arrived := make(chan error, 1)
		d.Get(write, [][]byte{d.Mem}, func(err error) { arrived <- err })
		reason := errors.New("the reason")
		if who == "host" {
			q.H.Terminate(reason)
			d.C.Push()
		} else {
			d.C.Terminate(reason)
		}
		herr, cerr := q.End(), d.End()
		if err := map[string]error{"host": herr, "controller": cerr}[who]; !errors.Is(err, reason) {
			t.Errorf("the %s was told %v", who, err)
		}
		if err := recv(t, "DataArrived", arrived); err == nil {
			t.Error("data has arrived that was not sent")
		}
		d.Respond(write, nvme.DataTransferError)
		d.Execute(read)
		d.C.Push()
		d.Empty()
		q.H.Submit(q.Command(0))
		q.H.Push()
		if q.Done() != 0 || room[0] != 0xA5 || room[len(room)-1] != 0xA5 {
			t.Error("something was completed after the end")
		}
	}
}

// Terminate before the host's Start, by either side.
func testEndEarly(t *testing.T, pair Pair) {
	q, d := connect(t, pair, 0, nil)
	q.H.Terminate(errors.New("not wanted"))
	d.Over()

	q, d = connect(t, pair, 0, nil)
	reason := errors.New("not wanted")
	d.C.Terminate(reason)
	if err := d.Over(); !errors.Is(err, reason) {
		t.Errorf("the controller's side ended with %v", err)
	}
	q.H.Start(q)
	q.H.Submit(q.Set(0, nvme.OpFlush, 0))
	q.H.Push()
	if q.End(); q.Done() != 0 {
		t.Error("a command was completed")
	}

	// Who starts the host is told of its end, also where somebody else has given it up before.
	q, d = connect(t, pair, 0, nil)
	q.H.Terminate(reason)
	d.Over()
	q.H.Start(q)
	if err := q.End(); !errors.Is(err, reason) {
		t.Errorf("the host's side ended with %v", err)
	}
}
