package iscsi

import (
	"bytes"
	"encoding/binary"
	"testing"

	"softiser/internal/iscsi"
)

// longReads serves a LUN with 16 MiB, which session r of an initiator with the shortest data segments
// has seen.
func longReads(t *testing.T, change func(*serverConfig), kv ...string) (*server, *rawInitiator) {
	t.Helper()
	s := serve(t, func(c *serverConfig, _ *Target) {
		smallBuffers(c)
		if change != nil {
			change(c)
		}
	})
	l := s.memory(t, "long", 16<<20)
	l.LUConfig.LUN = 3
	if _, err := l.Volume.WriteAt(longData, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.AddLUN(testIQN, l); err != nil {
		t.Fatal(err)
	}
	r := s.session(append(kv, "MaxRecvDataSegmentLength=512")...)
	for r.do(command{cdb: testUnitReady, lun: 3}, nil).status != 0 {
	}
	return s, r
}

// longData is what the LUN holds, no two blocks alike.
var longData = func() []byte {
	b := make([]byte, 16<<20)
	for i := 0; i < len(b); i += 512 {
		binary.BigEndian.PutUint32(b[i:], uint32(i))
	}
	return b
}()

// longRead is a READ of all of it.
var longRead = command{cdb: cdbRW10(0x28, 0, 32768), lun: 3, read: true, edtl: 16 << 20}

// queued is how many bytes of READs have been given to the datamovers of the only session.
func (s *server) queued() uint64 { return s.Status().Sessions[0].BytesOut }

// An initiator with short data segments does not have the target make the headers of all of a long
// READ at once: they are longer in memory than they seem, and it may never read them.
func TestLongReadsAreMadeAsTheyAreRead(t *testing.T) {
	s, r := longReads(t, nil)
	before := s.queued()
	tag := r.command(longRead)
	eventually(t, "the READ has begun", func() bool { return s.queued() > before })
	if n := s.queued() - before; n > 4<<20 {
		t.Errorf("%d bytes are on their way to who reads nothing", n)
	}
	if res := r.finish(tag, nil); res.status != 0 || !bytes.Equal(res.data, longData) {
		t.Errorf("status %#x, %d bytes", res.status, len(res.data))
	}
	if n := s.queued() - before; n != 16<<20 {
		t.Errorf("%d bytes were sent", n)
	}
}

// Its Data-Ins are numbered without a gap, and F is at the end of a burst and nowhere else.
func TestPiecesOfAREAD(t *testing.T) {
	_, r := longReads(t, nil)
	tag := r.command(command{cdb: cdbRW10(0x28, 8, 1023), lun: 3, read: true, edtl: 1023 * 512})
	for sn, off := uint32(0), uint32(0); off < 1023*512; sn++ {
		p := r.expect(iscsi.OpDataIn)
		d := p.DataIn()
		off += uint32(len(p.data))
		last := off == 1023*512
		if d.ITT() != tag || d.DataSN() != sn || d.Offset() != off-512 || d.Final() != (last || off%(256<<10) == 0) || d.HasStatus() != last {
			t.Fatalf("Data-In %d: % x", sn, p.BHS)
		}
	}
}

// Of a READ that is aborted while it is sent the rest is not sent, nor a response, and its end is
// told behind what has been sent.
func TestAbortOfALongREAD(t *testing.T) {
	for _, lun := range []int{3, 0} {
		s, r := longReads(t, nil)
		before := s.queued()
		tag := r.command(longRead)
		eventually(t, "the READ has begun", func() bool { return s.queued() > before })
		abort := r.sendTask(iscsi.AbortTask, lun, tag, r.cmdSN-1)
		got, want := 0, uint8(iscsi.TaskComplete)
		if lun == 0 {
			want = iscsi.TaskNotFound // it is with another unit
		}
		answered := false
		for ended := false; !answered || lun == 0 && !ended; {
			switch p := r.read(); p.Opcode() {
			case iscsi.OpDataIn:
				got += len(p.data)
				ended = p.DataIn().HasStatus()
			case iscsi.OpTaskResponse:
				answered = true
				if q := p.TaskResponse(); q.ITT() != abort || q.Response() != want {
					t.Errorf("LUN %d: response %d", lun, q.Response())
				}
			default:
				t.Fatalf("LUN %d: %v", lun, p.Opcode())
			}
		}
		if (got == 16<<20) != (lun == 0) {
			t.Errorf("LUN %d: %d bytes came", lun, got)
		}
		r.nop(nil) // nothing follows
		eventually(t, "no slot is in use", func() bool { return s.Status().Sessions[0].Slots == 0 })
	}
}

// A function that aborts task sets is answered behind the status of a READ that is being sent: the
// device server has done with it.
func TestAbortSetsBehindALongREAD(t *testing.T) {
	for _, f := range []iscsi.TaskFunction{iscsi.AbortTaskSet, iscsi.ClearTaskSet, iscsi.LogicalUnitReset, iscsi.TargetWarmReset} {
		s, r := longReads(t, nil)
		before := s.queued()
		tag := r.command(longRead)
		eventually(t, "the READ has begun", func() bool { return s.queued() > before })
		r.sendTask(f, 3, iscsi.ReservedTag, 0)
		if res := r.finish(tag, nil); res.status != 0 || !bytes.Equal(res.data, longData) {
			t.Errorf("%v: status %#x, %d bytes", f, res.status, len(res.data))
		}
		if got := r.expect(iscsi.OpTaskResponse).TaskResponse().Response(); got != iscsi.TaskComplete {
			t.Errorf("%v: response %d", f, got)
		}
	}
}

// At error recovery level 2 a READ that is being sent goes on over another connection, with what has
// been given to the lost one, and what has not, and over a third one; or it is aborted there.
func TestReassignALongREAD(t *testing.T) {
	for _, aborted := range []bool{false, true} {
		s, r := longReads(t, func(c *serverConfig) { level(2)(c, nil) }, "ErrorRecoveryLevel=2", "MaxConnections=4")
		long := command{cdb: cdbRW10(0x28, 0, 16384), lun: 3, read: true, edtl: 8 << 20}
		before := s.queued()
		tag := r.command(long)
		eventually(t, "the READ has begun", func() bool { return s.queued() > before })
		r.cut()
		s.connections(t, 0)
		b := s.takeOver(r, 1)
		if aborted {
			if code := b.task(iscsi.AbortTask, 3, tag, r.cmdSN-1); code != iscsi.TaskComplete {
				t.Errorf("ABORT TASK: response %d", code)
			}
			b.nop(nil)
		} else {
			b.mustReassign(tag, 0)
			b.cut()
			s.connections(t, 0)
			b = s.takeOver(b, 2)
			b.mustReassign(tag, 0)
			if res := b.finish(tag, nil); res.status != 0 || !bytes.Equal(res.data, longData[:8<<20]) {
				t.Errorf("status %#x sense % x, %d bytes", res.status, res.sense, len(res.data))
			}
		}
		b.ready()
		eventually(t, "no slot is in use", func() bool { return s.Status().Sessions[0].Slots == 0 })
	}
}
