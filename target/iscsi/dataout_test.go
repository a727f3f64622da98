package iscsi

import (
	"encoding/binary"
	"fmt"
	"testing"

	"softiser/internal/iscsi"
)

func unsolicitedAllowed(c *serverConfig, _ *Target) { c.Session.AllowUnsolicited = true }

// Every way to cut a WRITE into immediate, unsolicited and solicited data.
func TestWriteCuts(t *testing.T) {
	for _, initialR2T := range []string{"Yes", "No"} {
		for _, immediate := range []string{"Yes", "No"} {
			t.Run(fmt.Sprintf("InitialR2T=%s ImmediateData=%s", initialR2T, immediate), func(t *testing.T) {
				s := serve(t, unsolicitedAllowed)
				r := s.session("InitialR2T="+initialR2T, "ImmediateData="+immediate, "FirstBurstLength=16384", "MaxBurstLength=32768")
				if r.params["InitialR2T"] != initialR2T || r.params["ImmediateData"] != immediate {
					t.Fatalf("negotiated %v", r.params)
				}
				const first = 16384
				for _, total := range []int{512, 4096, 8192, 16384, 16384 + 512, 65536, 200 * 512} {
					for _, imm := range []int{0, 512, 1000, 4096, 16384} {
						if imm > min(total, first) || imm > 0 && immediate == "No" {
							continue
						}
						for _, piece := range []int{0, 512, 3000, 8192} {
							if piece > 0 && (initialR2T == "Yes" || imm == min(total, first)) {
								continue
							}
							r.writeCut(t, total, imm, piece, first)
						}
					}
				}
				r.logout()
			})
		}
	}
}

// writeCut writes total bytes, imm of them immediate and, when piece is not 0,
// the rest of the first burst as Data-Outs of that length.
func (r *rawInitiator) writeCut(t *testing.T, total, imm, piece, first int) {
	t.Helper()
	data := pattern(total, byte(total/512+imm+piece))
	tag := r.command(command{cdb: cdbRW10(0x2a, 64, uint16(total/512)), write: true, edtl: uint32(total), imm: data[:imm], more: piece > 0})
	if piece > 0 {
		end := min(total, first)
		sn := uint32(0)
		for off := imm; off < end; sn++ {
			n := min(piece, end-off)
			r.dataOut(tag, iscsi.ReservedTag, sn, uint32(off), data[off:off+n], off+n == end)
			off += n
		}
	}
	if res := r.finish(tag, data); res.status != 0 || res.residual != 0 {
		t.Fatalf("WRITE of %d, %d immediate, pieces of %d: status %#x residual %d sense % x", total, imm, piece, res.status, res.residual, res.sense)
	}
	mustEqual(t, fmt.Sprintf("WRITE of %d, %d immediate, pieces of %d", total, imm, piece), r.read10(64, uint16(total/512)), data)
}

// Unsolicited Data-Outs that break the rules.
func TestUnsolicitedViolations(t *testing.T) {
	data := pattern(16384, 3)
	for _, c := range []struct {
		name   string
		send   func(r *rawInitiator, tag uint32)
		closed bool
	}{
		{"DataSN out of order", func(r *rawInitiator, tag uint32) { r.dataOut(tag, iscsi.ReservedTag, 1, 0, data[:512], false) }, true},
		{"gap", func(r *rawInitiator, tag uint32) { r.dataOut(tag, iscsi.ReservedTag, 0, 512, data[:512], false) }, true},
		{"too much", func(r *rawInitiator, tag uint32) {
			r.dataOut(tag, iscsi.ReservedTag, 0, 0, data[:8192], false)
			r.dataOut(tag, iscsi.ReservedTag, 1, 8192, data[:8704], true)
		}, true},
		{"complete without F", func(r *rawInitiator, tag uint32) {
			r.dataOut(tag, iscsi.ReservedTag, 0, 0, data[:8192], false)
			r.dataOut(tag, iscsi.ReservedTag, 1, 8192, data[:8192], false)
		}, true},
		{"too little", func(r *rawInitiator, tag uint32) { r.dataOut(tag, iscsi.ReservedTag, 0, 0, data[:512], true) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, unsolicitedAllowed)
			other := s.dial()
			other.isid[5] = 77
			other.mustLogin(testIQN)
			other.ready()
			r := s.session("InitialR2T=No", "FirstBurstLength=16384")
			tag := r.command(command{cdb: cdbRW10(0x2a, 0, 32), write: true, edtl: 16384, more: true})
			c.send(r, tag)
			if c.closed {
				r.expectClosed()
			} else {
				res := r.finish(tag, nil)
				if res.status != 2 || binary.BigEndian.Uint16(res.sense[12:]) != 0x0c0d {
					t.Errorf("status %#x sense % x", res.status, res.sense)
				}
				r.nop(nil)
			}
			other.nop(nil)
			eventually(t, "the collected data is given back", func() bool { return s.bursts.outstanding() == 0 })
		})
	}
}

// Commands that announce or bring more data than the negotiation lets them are rejected.
func TestImmediateViolations(t *testing.T) {
	s := serve(t, unsolicitedAllowed)
	for _, c := range []struct {
		name string
		keys []string
		c    command
	}{
		{"immediate data that was not agreed on", []string{"ImmediateData=No"}, command{imm: make([]byte, 512)}},
		{"more immediate data than FirstBurstLength", []string{"FirstBurstLength=4096"}, command{imm: make([]byte, 4608)}},
		{"the first burst is whole, but the F bit is clear", []string{"FirstBurstLength=4096", "InitialR2T=No"}, command{imm: make([]byte, 4096), more: true}},
		{"the data is whole, but the F bit is clear", []string{"FirstBurstLength=65536", "InitialR2T=No"}, command{imm: make([]byte, 16384), more: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.session(append(c.keys, "MaxBurstLength=65536")...)
			c.c.cdb, c.c.write, c.c.edtl = cdbRW10(0x2a, 0, 32), true, 16384
			r.command(c.c)
			if p := r.expect(iscsi.OpReject); p.Reject().Reason() != iscsi.RejectProtocol {
				t.Errorf("reason %v", p.Reject().Reason())
			}
			r.nop(nil) // the session goes on
			r.logout()
		})
	}
}

// An ORDERED write is not passed by what comes behind it while its data is on
// its way.
func TestOrderedWriteIsNotPassed(t *testing.T) {
	s := serve(t, unsolicitedAllowed)
	r := s.session("InitialR2T=No", "FirstBurstLength=16384")
	data := pattern(16384, 5)
	w := r.command(command{cdb: cdbRW10(0x2a, 0, 32), write: true, edtl: 16384, more: true, attr: 2})
	rd := r.command(command{cdb: cdbRW10(0x28, 0, 32), read: true, edtl: 16384})
	p := r.nop(nil) // immediate: passes
	if p.ExpCmdSN() != r.cmdSN-1 {
		t.Errorf("ExpCmdSN %d: the READ behind the ORDERED WRITE has been taken", p.ExpCmdSN())
	}
	r.dataOut(w, iscsi.ReservedTag, 0, 0, data[:8192], false)
	r.dataOut(w, iscsi.ReservedTag, 1, 8192, data[8192:], true)
	if res := r.finish(w, nil); res.status != 0 {
		t.Fatalf("write: status %#x", res.status)
	}
	mustEqual(t, "the READ behind it", r.finish(rd, nil).data, data)
}

// An immediate one is in no order with the others: what comes behind it passes.
func TestImmediateOrderedWriteIsPassed(t *testing.T) {
	s := serve(t, unsolicitedAllowed)
	r := s.session("InitialR2T=No", "FirstBurstLength=16384")
	w := r.command(command{cdb: cdbRW10(0x2a, 0, 32), write: true, edtl: 16384, more: true, attr: 2, immediate: true})
	if res := r.do(command{cdb: testUnitReady}, nil); res.status != 0 {
		t.Errorf("status %#x", res.status)
	}
	r.dataOut(w, iscsi.ReservedTag, 0, 0, make([]byte, 16384), true)
	if res := r.finish(w, nil); res.status != 0 {
		t.Errorf("write: status %#x", res.status)
	}
}

// Nor does an ORDERED command pass a WRITE before it whose data is on its way (SAM-5 §8.6): it
// is delivered when the last one has its data, or is aborted. A SIMPLE one passes.
func TestOrderedCommandWaitsForDataOnItsWay(t *testing.T) {
	s := serve(t, unsolicitedAllowed)
	r := s.session("InitialR2T=No", "FirstBurstLength=16384")
	write := func(lba uint32) uint32 {
		return r.command(command{cdb: cdbRW10(0x2a, lba, 32), write: true, edtl: 16384, more: true})
	}
	read := command{cdb: cdbRW10(0x28, 0, 32), read: true, edtl: 16384}
	for name, end := range map[string]func(w uint32){
		"its data comes": func(w uint32) {
			r.dataOut(w, iscsi.ReservedTag, 0, 0, make([]byte, 16384), true)
			if res := r.finish(w, nil); res.status != 0 {
				t.Errorf("write: status %#x", res.status)
			}
		},
		"ABORT TASK": func(w uint32) { r.sendTask(iscsi.AbortTask, 0, w, r.cmdSN-4) },
		"too little data": func(w uint32) {
			r.dataOut(w, iscsi.ReservedTag, 0, 0, make([]byte, 512), true)
			if res := r.finish(w, nil); res.status != 2 {
				t.Errorf("write: status %#x", res.status)
			}
		},
	} {
		data := pattern(16384, 5)
		w0, w1 := write(0), write(64)
		if res := r.do(read, nil); res.status != 0 {
			t.Errorf("%s: a SIMPLE READ behind the WRITEs: status %#x", name, res.status)
		}
		ordered := read
		ordered.attr = 2
		rd := r.command(ordered)
		last := r.command(command{cdb: testUnitReady})
		if p := r.nop(nil); p.ExpCmdSN() != r.cmdSN-2 {
			t.Errorf("%s: ExpCmdSN %d, want %d: the ORDERED READ behind the WRITEs has been taken", name, p.ExpCmdSN(), r.cmdSN-2)
		}
		r.dataOut(w0, iscsi.ReservedTag, 0, 0, data, true)
		if res := r.finish(w0, nil); res.status != 0 {
			t.Fatalf("%s: write: status %#x", name, res.status)
		}
		end(w1)
		if name == "ABORT TASK" {
			r.expect(iscsi.OpTaskResponse)
		}
		mustEqual(t, name, r.finish(rd, nil).data, data)
		r.finish(last, nil)
	}
}

// A WRITE whose data is there is not passed on its way to the device server either, by what comes
// on another connection: neither an ORDERED one, nor any by an ORDERED command.
func TestOrderedOnTheWayToTheDeviceServer(t *testing.T) {
	for _, attr := range []uint8{1, 2} {
		s := serve(t, func(c *serverConfig, _ *Target) { c.Session.AllowUnsolicited, c.Session.MaxConnections = true, 2 })
		c, m := s.loopConn(t, "MaxConnections=2", "InitialR2T=No", "FirstBurstLength=16384")
		sn := uint32(1)
		tur := scsiPDU(testUnitReady, false, 0, nil)
		tur.BHS.SCSICommand().SetRead(false)
		for m.run(tur, &sn) != 0 { // unit attentions
		}
		write := scsiPDU(cdbRW10(0x2a, 8, 1), true, 512, nil)
		write.BHS.SCSICommand().SetFinal(false)
		write.BHS.SCSICommand().SetAttr(attr)
		write.BHS.SetCmdSN(sn)
		write.BHS.SetITT(sn)
		m.deliver(write)
		c.sess.mu.Lock()
		k := c.sess.cmds.tags.find(sn)
		k.unsol.buf = append(k.unsol.buf, make([]byte, 512)...)
		stall := k.collectedLocked(burstRuns) // as takeDataOut does
		c.sess.mu.Unlock()
		behind := scsiPDU(testUnitReady, false, 0, nil)
		behind.BHS.SCSICommand().SetRead(false)
		behind.BHS.SCSICommand().SetAttr(3 - attr)
		behind.BHS.SetCmdSN(sn + 1)
		behind.BHS.SetITT(sn + 1)
		before, _ := m.said()
		m.deliver(behind)
		if n, _ := m.said(); n != before {
			t.Errorf("ATTR %d: it has been passed", attr)
		}
		k.endBurst(nil, burstRuns, stall)
		eventually(t, "both are answered", func() bool { // a worker may have the WRITE
			n, _ := m.said()
			return n == before+2
		})
	}
}

// An ORDERED command that waits for the data of another one goes on when another initiator's
// reset ends that.
func TestResetReleasesAnOrderedCommand(t *testing.T) {
	s := serve(t, unsolicitedAllowed)
	r, other := s.session(), s.dial()
	other.isid[5] = 50
	other.mustLogin(testIQN, "InitialR2T=No", "FirstBurstLength=16384")
	other.ready()
	other.command(command{cdb: cdbRW10(0x2a, 0, 32), write: true, edtl: 16384, more: true})
	tag := other.command(command{cdb: testUnitReady, attr: 2})
	if p := other.nop(nil); p.ExpCmdSN() != other.cmdSN-1 {
		t.Errorf("ExpCmdSN %d: the ORDERED command has been taken", p.ExpCmdSN())
	}
	r.sendTask(iscsi.LogicalUnitReset, 0, iscsi.ReservedTag, 0)
	if p := other.expect(iscsi.OpSCSIResponse); p.ITT() != tag {
		t.Errorf("response for %#x, want %#x", p.ITT(), tag)
	}
	other.answerPing()
	if got := r.expect(iscsi.OpTaskResponse).TaskResponse().Response(); got != iscsi.TaskComplete {
		t.Errorf("response %d", got)
	}
}

// Data-Outs of a command that has been aborted are dropped without a word.
func TestStrayUnsolicitedData(t *testing.T) {
	s := serve(t, unsolicitedAllowed)
	r := s.session("InitialR2T=No", "FirstBurstLength=16384")
	tag := r.command(command{cdb: cdbRW10(0x2a, 0, 32), write: true, edtl: 16384, more: true})
	r.dataOut(tag, iscsi.ReservedTag, 0, 0, make([]byte, 512), false)
	if code := r.task(iscsi.AbortTask, 0, tag, r.cmdSN-1); code != iscsi.TaskComplete {
		t.Fatalf("ABORT TASK: %d", code)
	}
	r.dataOut(tag, iscsi.ReservedTag, 1, 512, make([]byte, 512), false)
	r.nop(nil)
	if n := s.Status().Sessions[0].Dropped; n != 1 {
		t.Errorf("%d PDUs dropped, want 1", n)
	}
	if n := s.bursts.outstanding(); n != 0 {
		t.Errorf("%d buffers out", n)
	}
	r.ready()
}
