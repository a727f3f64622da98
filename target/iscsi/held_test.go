package iscsi

import (
	"errors"
	"fmt"
	"testing"

	"softiser/blockdev"
	"softiser/internal/iscsi"
	"softiser/internal/iscsitcp"
	"softiser/internal/iser"
	"softiser/internal/spc"

	"softiser/target/portal"
)

// heldCommands is how many commands the sessions hold.
func (s *server) heldCommands() (n int) {
	for _, x := range s.sessionList(nil) {
		x.mu.Lock()
		n += x.order.seq.n
		x.mu.Unlock()
	}
	return n
}

// delivering reports whether a command is on its way from a window to the device server.
func (s *server) delivering() (yes bool) {
	for _, x := range s.sessionList(nil) {
		x.mu.Lock()
		yes = yes || x.order.seq.delivering
		x.mu.Unlock()
	}
	return yes
}

// Commands that wait for one before them leave the receive buffers to others, and are
// carried out with their data when their turn has come.
func TestHeldPDUsLeaveBuffers(t *testing.T) {
	eachTransport(t, func(t *testing.T, kind portal.Transport) {
		s := serve(t, func(c *serverConfig, _ *Target) { c.Staging = pool(t, 8<<20) })
		m := s.connect(kind, iser.ConnConfig{})
		m.login()
		m.ready()
		gap := m.cmdSN
		m.cmdSN++
		const n = 60
		for i := range n {
			m.cmd(cdbRW10(0x2a, uint32(8*i), 8), nil, pattern(4096, byte(i)))
		}
		eventually(t, "all are held", func() bool { return s.heldCommands() == n })
		if out := s.wires.RDMA.ReceivesOut() + iscsitcp.BuffersOut(); out != 0 {
			t.Errorf("%d receive buffers are in use", out)
		}
		m.cmdSN = gap
		m.cmd(testUnitReady, nil, nil)
		for range n + 1 {
			if p := m.recv(); p.BHS.SCSIResponse().Status() != 0 {
				t.Fatalf("%#x: status %#x", p.BHS.ITT(), p.BHS.SCSIResponse().Status())
			}
		}
		m.cmdSN = gap + n + 1
		for i := range n {
			got := make([]byte, 4096)
			m.good(cdbRW10(0x28, uint32(8*i), 8), got, nil)
			mustEqual(t, fmt.Sprint("block ", i), got, pattern(4096, byte(i)))
		}
	})
}

// holdWrites sends n WRITEs of 64 KiB each with all their data, and leaves out the
// command before them, whose number it returns.
func (r *rawInitiator) holdWrites(n int) (gap uint32) {
	gap = r.cmdSN
	r.cmdSN++
	for range n {
		r.command(command{cdb: cdbRW10(0x2a, 0, 128), write: true, edtl: 64 << 10, imm: make([]byte, 64<<10)})
	}
	return gap
}

// What initiators leave behind gaps has one bound. Those who come later are served as
// if there were nothing, and those who have no room are told to try again; nobody
// loses a connection over it.
func TestHeldBehindAGap(t *testing.T) {
	var staging *blockdev.Pool
	s := serve(t, func(c *serverConfig, _ *Target) {
		staging = pool(t, 4<<20)
		c.Staging = staging
	})
	const sessions, each = 4, 20
	var all []*rawInitiator
	var gaps []uint32
	for i := range sessions {
		r := s.dial()
		r.isid[5] = byte(i + 1)
		r.mustLogin(testIQN)
		r.ready()
		all = append(all, r)
		gaps = append(gaps, r.holdWrites(each))
	}
	eventually(t, "all are held", func() bool { return s.heldCommands() == sessions*each })
	if n := staging.Reserved(); n > 2<<20 || n < 1<<20 {
		t.Errorf("%d bytes are held, of %d that were sent and 2 MiB that there may be", n, sessions*each*64<<10)
	}
	by := s.dial()
	by.isid[5] = 99
	by.mustLogin(testIQN)
	by.ready()
	by.write10(1024, pattern(4096, 1))
	mustEqual(t, "what somebody else has written", by.read10(1024, 8), pattern(4096, 1))
	good, busy := 0, 0
	for i, r := range all {
		r.at(gaps[i], command{cdb: testUnitReady})
		for range each + 1 {
			switch st := r.expect(iscsi.OpSCSIResponse).SCSIResponse().Status(); st {
			case byte(spc.StatusGood):
				good++
			case byte(spc.StatusBusy):
				busy++
			default:
				t.Fatalf("status %#x", st)
			}
		}
		r.read10(0, 8)
	}
	if good < sessions || busy == 0 {
		t.Errorf("%d commands were carried out, %d were told to try again", good, busy)
	}
}

// A WRITE for whose data there is no memory ends with BUSY, whether its data comes
// with it, behind it, or ahead of its turn; afterwards it can be carried out.
func TestHeldWithoutMemory(t *testing.T) {
	const n = 64 << 10
	want := pattern(n, 7)
	var staging *blockdev.Pool
	for _, c := range []struct {
		name      string
		imm       int
		inOrder   bool
		full      bool // the memory is used up when the command comes, else when its data does
		dataAfter bool
	}{
		{name: "immediate", imm: n, inOrder: true, full: true},
		{name: "unsolicited", imm: 4096, inOrder: true, full: true, dataAfter: true},
		{name: "immediate, ahead", imm: n, full: true},
		{name: "unsolicited, ahead", imm: 4096, full: true, dataAfter: true},
		{name: "unsolicited, ahead, late", imm: 4096, dataAfter: true},
		{name: "data only", imm: 4096, inOrder: true, dataAfter: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, func(cfg *serverConfig, tgt *Target) {
				unsolicitedAllowed(cfg, tgt)
				staging = pool(t, 2<<20)
				cfg.Staging = staging
			})
			r := s.session("InitialR2T=No", "ImmediateData=Yes", "FirstBurstLength=65536")
			use := func() (used int) {
				for k := 1 << 19; k > 0; k /= 2 {
					for staging.Reserve(k) {
						used += k
					}
				}
				return used
			}
			used := 0
			if c.full {
				used = use()
			}
			gap := r.cmdSN
			if !c.inOrder {
				r.cmdSN++
			}
			tag := r.command(command{cdb: cdbRW10(0x2a, 0, n/512), write: true, edtl: n, imm: want[:c.imm], more: c.dataAfter})
			if !c.full {
				eventually(t, "the command has come", func() bool { return staging.Reserved() > 0 })
				used = use()
			}
			if c.dataAfter {
				r.dataOut(tag, iscsi.ReservedTag, 0, uint32(c.imm), want[c.imm:], true)
			}
			if !c.inOrder {
				eventually(t, "the command is held", func() bool { return s.heldCommands() == 1 })
				if p := r.nop(nil); p.ITT() == iscsi.ReservedTag { // what was sent before has been taken
					t.Fatal("no answer")
				}
				r.at(gap, command{cdb: testUnitReady})
				if p := r.expect(iscsi.OpSCSIResponse); p.SCSIResponse().Status() != 0 {
					t.Fatalf("the command before: status %#x", p.SCSIResponse().Status())
				}
			}
			if res := r.finish(tag, nil); res.status != byte(spc.StatusBusy) {
				t.Fatalf("without memory: status %#x, sense % x", res.status, res.sense)
			}
			if st := s.Status(); st.Sessions[0].NoMemory != 1 || st.Staging.Reserved < 1<<20-128<<10 || st.Staging.Limit != 2<<20 {
				t.Errorf("status: %d without memory, %+v", st.Sessions[0].NoMemory, st.Staging)
			}
			staging.Unreserve(used)
			tag = r.command(command{cdb: cdbRW10(0x2a, 0, n/512), write: true, edtl: n, imm: want[:c.imm], more: c.dataAfter})
			if c.dataAfter {
				r.dataOut(tag, iscsi.ReservedTag, 0, uint32(c.imm), want[c.imm:], true)
			}
			if res := r.finish(tag, nil); res.status != 0 {
				t.Fatalf("with memory: status %#x, sense % x", res.status, res.sense)
			}
			mustEqual(t, "the data", r.read10(0, n/512), want)
		})
	}
}

// The unsolicited data of a WRITE that is ahead of its turn waits with it.
func TestDataOutsOfAHeldCommand(t *testing.T) {
	const n = 32 << 10
	s := serve(t, func(c *serverConfig, tgt *Target) {
		unsolicitedAllowed(c, tgt)
		c.Staging = pool(t, 8<<20)
	})
	r := s.session("InitialR2T=No", "ImmediateData=Yes", "FirstBurstLength=65536")
	gap := r.cmdSN
	r.cmdSN++
	var tags []uint32
	for i := range 3 {
		want := pattern(n, byte(i))
		tag := r.command(command{cdb: cdbRW10(0x2a, uint32(i*n/512), n/512), write: true, edtl: n, imm: want[:4096], more: true, attr: 2})
		r.dataOut(tag, iscsi.ReservedTag, 0, 4096, want[4096:8192], false)
		r.dataOut(tag, iscsi.ReservedTag, 1, 8192, want[8192:], true)
		tags = append(tags, tag)
	}
	r.at(gap, command{cdb: testUnitReady})
	r.expect(iscsi.OpSCSIResponse)
	for range tags {
		if p := r.expect(iscsi.OpSCSIResponse); p.SCSIResponse().Status() != 0 {
			t.Fatalf("%#x: status %#x", p.ITT(), p.SCSIResponse().Status())
		}
	}
	for i := range tags {
		mustEqual(t, fmt.Sprint("write ", i), r.read10(uint32(i*n/512), n/512), pattern(n, byte(i)))
	}
	// A command that is given up takes its data along.
	r.cmdSN++
	tag := r.command(command{cdb: cdbRW10(0x2a, 0, n/512), write: true, edtl: n, imm: make([]byte, 4096), more: true})
	r.dataOut(tag, iscsi.ReservedTag, 0, 4096, make([]byte, n-4096), true)
	eventually(t, "it is held", func() bool { return s.heldCommands() == 1 })
	r.cut()
	eventually(t, "nothing is left of it", func() bool { return s.cfg.Staging.Reserved() == 0 })
}

// A command that has been held starts when it is delivered, and not with the batch that it came in.
func TestHeldCommandLeavesItsBatch(t *testing.T) {
	q := newSequence(4)
	defer giveUp(q)
	var n int
	p := arrive(1, &n)
	p.Batch = 7
	q.hold(nil, p, 0)
	if h := q.at(sequenceStart + 1); h.p.Batch != 0 {
		t.Errorf("it is of batch %d", h.p.Batch)
	}
}

// What a connection still has in its buffer when its session ends is not held any more: nobody
// would let go of it.
func TestNothingIsHeldBehindTheEnd(t *testing.T) {
	s := serve(t, func(c *serverConfig, _ *Target) { c.Staging = pool(t, 8<<20) })
	r := s.session()
	x := s.sessionList(nil)[0]
	c := x.conns.list()[0]
	x.end(errors.New("the test ends it"))
	p := &iscsi.PDU{Data: make([]byte, 512)}
	p.BHS.NewSCSICommand().SetCmdSN(r.cmdSN + 1)
	x.order.arrived(c, p)
	if n := s.cfg.Staging.Reserved(); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
	r.cut()
}
