package datamovertest

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"softiser/internal/iscsi"
)

// mark is what the tests leave in memory that nobody may touch any more.
var mark = bytes.Repeat([]byte{0xee}, 1<<20)

func overwrite(b []byte) { copy(b, mark) }

func overwritten(b []byte) bool { return bytes.Equal(b, mark[:len(b)]) }

// hold submits a command that the test answers, and returns both ends of it.
func (s *Session) hold(t *testing.T, write bool, segs [][]byte) (*Command, *iscsi.PDU) {
	t.Helper()
	i := s.Initiator
	c := <-i.free
	i.mu.Lock()
	n := uint32(0)
	for _, g := range segs {
		n += uint32(len(g))
	}
	c.pdu = iscsi.PDU{Bufs: &c.bufs}
	c.bufs = iscsi.TaskBuffers{}
	b := c.pdu.BHS.NewSCSICommand()
	b.SetITT(c.itt)
	b.SetEDTL(n)
	b.SetCmdSN(i.win.Next())
	b.SetExpStatSN(i.expStat.Load())
	b.CDB()[0] = opHold
	if write {
		b.SetWrite(true)
		c.bufs.Out = segs
	} else {
		b.SetRead(true)
		c.bufs.In = segs
	}
	c.busy = true
	err := i.dm.SendControl(&c.pdu)
	i.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	i.dm.Push()
	return c, recv(t, "command", s.Target.Held)
}

// answer ends a held command.
func (s *Session) answer(t *testing.T, p *iscsi.PDU) {
	t.Helper()
	s.Target.mu.Lock()
	r := iscsi.PDU{Ref: p.Ref}
	b := r.BHS.NewSCSIResponse()
	b.SetITT(p.BHS.ITT())
	b.SetSequence(s.Target.nextSequence())
	err := s.Target.dm.SendControl(&r)
	s.Target.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	s.Target.dm.Push()
	p.Release()
}

// After AbortTransfer of a GetData has returned, its memory does not change.
func testAbortGetData(t *testing.T, pair Pair, o Options) {
	s := Open(t, pair, o)
	defer s.Close()
	const n = 1 << 20
	data := bytes.Repeat([]byte{0x11}, n)
	for round := range 20 {
		c, cmd := s.hold(t, true, [][]byte{data})
		mem := make([]byte, n)
		x := &iscsi.Transfer{ITT: cmd.BHS.ITT(), LUN: cmd.BHS.LUN(), Ref: &cmd.Ref, Len: n, Segs: [][]byte{mem}}
		s.Target.outstanding.Add(1)
		if err := s.Target.dm.GetData(x); err != nil {
			t.Fatal(err)
		}
		s.Target.dm.Push()
		if round%2 == 1 {
			time.Sleep(time.Duration(round) * 20 * time.Microsecond) // somewhere in the middle
		}
		s.Target.dm.AbortTransfer(x)
		overwrite(mem)
		s.Target.dm.Push()
		y := recv(t, "completion of the aborted transfer", s.Target.Done)
		if y != x || x.Err != nil && !errors.Is(x.Err, iscsi.ErrAborted) {
			t.Fatalf("completed %p with %v, expected %p", y, y.Err, x)
		}
		if !overwritten(mem) {
			t.Fatalf("round %d: the memory changed after AbortTransfer", round)
		}
		s.answer(t, cmd)
		if err := c.Wait(); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 10000) // the connection is as good as before
		if err := s.Initiator.Do(opRead, 5, [][]byte{buf}, 0, 1); err != nil {
			t.Fatal(err)
		}
		if !s.Target.holds(5, buf) {
			t.Fatal("wrong data after an abort")
		}
	}
}

// An aborted PutData completes once, and the connection goes on.
func testAbortPutData(t *testing.T, pair Pair, o Options) {
	s := Open(t, pair, o)
	defer s.Close()
	const n = 1 << 20
	for range 10 {
		buf := make([]byte, n)
		c, cmd := s.hold(t, false, [][]byte{buf})
		x := &iscsi.Transfer{ITT: cmd.BHS.ITT(), LUN: cmd.BHS.LUN(), Ref: &cmd.Ref, Len: n, Segs: [][]byte{s.Target.Disk[:n]}, Final: true}
		s.Target.outstanding.Add(1)
		if err := s.Target.dm.PutData(x); err != nil {
			t.Fatal(err)
		}
		s.Target.dm.AbortTransfer(x)
		s.Target.dm.Push()
		if y := recv(t, "completion", s.Target.Done); y != x || x.Err != nil && !errors.Is(x.Err, iscsi.ErrAborted) {
			t.Fatalf("completed %p with %v", y, y.Err)
		}
		s.answer(t, cmd)
		if err := c.Wait(); err != nil {
			t.Fatal(err)
		}
		if err := s.Initiator.Do(opRead, 0, [][]byte{buf}, 0, 1); err != nil {
			t.Fatal(err)
		}
	}
}

// After ReleaseTask the initiator's memory is neither written nor read. The
// target may lose the connection over it (a dead STag), never more.
func testReleaseTask(t *testing.T, pair Pair, o Options) {
	for round := range 8 {
		s := Open(t, pair, o)
		const n = 1 << 20
		buf := make([]byte, n)
		c, cmd := s.hold(t, round%2 == 1, [][]byte{buf})
		x := &iscsi.Transfer{ITT: cmd.BHS.ITT(), LUN: cmd.BHS.LUN(), Ref: &cmd.Ref, Len: n, Segs: [][]byte{s.Target.Disk[:n]}, Final: true}
		s.Target.outstanding.Add(1)
		var err error
		if round%2 == 1 {
			err = s.Target.dm.GetData(x)
		} else {
			err = s.Target.dm.PutData(x)
		}
		if err != nil {
			t.Fatal(err)
		}
		go s.Target.dm.Push()
		if round > 3 {
			time.Sleep(time.Duration(round) * 30 * time.Microsecond)
		}
		s.Initiator.mu.Lock()
		c.busy = false
		s.Initiator.mu.Unlock()
		s.Initiator.dm.ReleaseTask(&c.bufs)
		overwrite(buf)
		s.Initiator.dm.Push()
		if round%2 == 0 {
			recv(t, "completion", s.Target.Done)
		}
		cmd.Release()
		if !overwritten(buf) {
			t.Fatalf("round %d: the memory changed after ReleaseTask", round)
		}
		s.Target.dm.Terminate(errors.New("end of the test"))
		s.Initiator.dm.Terminate(errors.New("end of the test"))
		s.Initiator.end.wait(t, "initiator")
		s.Target.end.wait(t, "target")
		if k := s.Target.outstanding.Load(); k != 0 {
			t.Fatalf("%d transfers were not completed", k)
		}
	}
}
