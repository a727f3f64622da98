package iscsi

import (
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"softiser/internal/alloctest"
	"softiser/internal/iscsi"

	"softiser/target/portal"
)

// loopMover is a datamover without a wire: transfers complete in Push, and
// control PDUs are counted. It shows what the session layer itself costs.
type loopMover struct {
	up        iscsi.Upper
	mu        sync.Mutex    // orders up-calls, as a receive goroutine does
	responses int           // guarded by list, where more than one goroutine answers: see said
	pings     int           // likewise
	last      iscsi.BHS     // likewise
	name      string        // of the initiator; "": any
	aborts    int           // guarded by list: transfers that were to be aborted
	stubborn  bool          // an orderly Terminate does not end: the peer does not read
	backlog   iscsi.Backlog // guarded by list

	list sync.Mutex
	done []*iscsi.Transfer // guarded by list: transfers that Push completes
	dead bool              // guarded by list
}

func (m *loopMover) Start(u iscsi.Upper)            { m.up = u }
func (m *loopMover) Limits() iscsi.Limits           { return iscsi.Limits{MaxControlData: 8192} }
func (m *loopMover) KeyProfile() iscsi.KeyProfile   { return iscsi.KeyProfile{} }
func (m *loopMover) NoticeKeyValues(*iscsi.Params)  {}
func (m *loopMover) Enable() error                  { return nil }
func (m *loopMover) AbortTransfer(*iscsi.Transfer)  { m.list.Lock(); m.aborts++; m.list.Unlock() }
func (m *loopMover) ReleaseTask(*iscsi.TaskBuffers) {}
func (m *loopMover) Terminate(reason error) {
	if reason == nil && m.stubborn {
		return
	}
	m.list.Lock()
	again := m.dead
	m.dead = true
	m.list.Unlock()
	if again {
		return
	}
	go func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for x := m.next(); x != nil; x = m.next() {
			x.Err = net.ErrClosed
			m.up.DataCompletionNotify(x)
		}
		m.up.ConnectionTerminateNotify(reason)
	}()
}

func (m *loopMover) Stats() iscsi.DatamoverStats     { return iscsi.DatamoverStats{} }
func (m *loopMover) Backlog() iscsi.Backlog          { m.list.Lock(); defer m.list.Unlock(); return m.backlog }
func (m *loopMover) Describe() string                { return "loop" }
func (m *loopMover) Recovery() iscsi.Recovery        { return nil }
func (m *loopMover) PutData(x *iscsi.Transfer) error { return m.queue(x) }
func (m *loopMover) GetData(x *iscsi.Transfer) error { return m.queue(x) }

func (m *loopMover) queue(x *iscsi.Transfer) error {
	m.list.Lock()
	defer m.list.Unlock()
	if m.dead {
		return net.ErrClosed
	}
	m.done = append(m.done, x)
	return nil
}

// next takes the oldest transfer.
func (m *loopMover) next() *iscsi.Transfer {
	m.list.Lock()
	defer m.list.Unlock()
	if len(m.done) == 0 {
		return nil
	}
	x := m.done[0]
	m.done = m.done[:copy(m.done, m.done[1:])]
	return x
}

func (m *loopMover) SendControl(p *iscsi.PDU) error {
	m.list.Lock()
	defer m.list.Unlock()
	m.responses++
	m.last = p.BHS
	if p.BHS.Opcode() == iscsi.OpNopIn && p.BHS.ITT() == iscsi.ReservedTag {
		m.pings++
	}
	return nil
}

func (m *loopMover) Push() {
	for x := m.next(); x != nil; x = m.next() {
		m.up.DataCompletionNotify(x)
	}
}

// said is how many PDUs have been sent, and the last one.
func (m *loopMover) said() (int, iscsi.BHS) {
	m.list.Lock()
	defer m.list.Unlock()
	return m.responses, m.last
}

// deliver is what the wire would do.
func (m *loopMover) deliver(p *iscsi.PDU) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.up.ControlNotify(p)
}

// loopStart is a connection over a loopMover that waits for its login.
func (s *server) loopStart(t testing.TB) (*conn, *loopMover) {
	t.Helper()
	m := &loopMover{}
	c := &conn{
		srv: s.Frontend, portal: s.listening.Portals()[0], kind: portal.TCP, dm: m, opened: time.Now(), log: zap.NewNop(),
		local: netip.MustParseAddrPort("127.0.0.1:3260"), remote: netip.MustParseAddrPort("127.0.0.1:9"), ended: make(chan struct{}),
	}
	c.assemble()
	c.startLogin()
	if !s.addConn(c) {
		t.Fatal("the server does not take the connection")
	}
	m.Start(c)
	t.Cleanup(func() {
		c.close(errKilled)
		<-c.ended
	})
	return c, m
}

// loopConn is a session over a loopMover, past its login.
func (s *server) loopConn(t testing.TB, kv ...string) (*conn, *loopMover) {
	t.Helper()
	c, m := s.loopStart(t)
	s.loopLogin(t, c, m, kv...)
	return c, m
}

func (s *server) loopLogin(t testing.TB, c *conn, m *loopMover, kv ...string) {
	t.Helper()
	name := "iqn.2026-11.test:loop" + m.name
	p := &iscsi.PDU{Data: append(keys("InitiatorName="+name, "TargetName="+testIQN), keys(kv...)...)}
	l := p.BHS.NewLoginRequest()
	l.SetStages(true, false, iscsi.StageOperational, iscsi.StageFullFeature)
	l.SetDataLen(len(p.Data))
	l.SetCmdSN(1)
	m.deliver(p)
	if c.state.get() != connFull {
		t.Fatalf("login: state %v, last response % x", c.state.get(), m.last[:])
	}
}

// run executes one command to its end.
func (m *loopMover) run(p *iscsi.PDU, sn *uint32) uint8 {
	p.BHS.SetCmdSN(*sn)
	p.BHS.SetITT(*sn)
	*sn++
	before := m.responses
	m.deliver(p)
	m.Push()
	if m.responses != before+1 {
		return 0xff
	}
	return m.last.SCSIResponse().Status()
}

func scsiPDU(cdb []byte, write bool, edtl int, data []byte) *iscsi.PDU {
	p := &iscsi.PDU{Data: data}
	q := p.BHS.NewSCSICommand()
	q.SetFinal(true)
	q.SetRead(!write)
	q.SetWrite(write)
	q.SetAttr(1)
	q.SetEDTL(uint32(edtl))
	q.SetCDB(cdb)
	q.SetDataLen(len(data))
	return p
}

// Nothing is allocated per command, neither here nor in the device server.
func TestNoAllocationPerCommand(t *testing.T) {
	s := serve(t, nil)
	_, m := s.loopConn(t)
	sn := uint32(1)
	tur := scsiPDU(testUnitReady, false, 0, nil)
	tur.BHS.SCSICommand().SetRead(false)
	for range 4 {
		if m.run(tur, &sn) == 0 {
			break
		}
	}
	for name, p := range map[string]*iscsi.PDU{
		"READ 4 KiB":             scsiPDU(cdbRW10(0x28, 8, 8), false, 4096, nil),
		"WRITE 4 KiB, solicited": scsiPDU(cdbRW10(0x2a, 8, 8), true, 4096, nil),
		"WRITE 4 KiB, immediate": scsiPDU(cdbRW10(0x2a, 8, 8), true, 4096, make([]byte, 4096)),
		"READ 1 MiB":             scsiPDU(cdbRW10(0x28, 0, 2048), false, 1<<20, nil),
	} {
		t.Run(name, func(t *testing.T) {
			bad := 0
			once := func() {
				if st := m.run(p, &sn); st != 0 {
					bad++
				}
			}
			for range 10 {
				once() // the first use of the pages may go to a worker
			}
			bad = 0
			if n := alloctest.PerRun(200, once); n != 0 {
				t.Errorf("%v allocations per command", n)
			}
			if bad != 0 {
				t.Errorf("%d commands did not end with GOOD in line", bad)
			}
		})
	}
}

func BenchmarkSession(b *testing.B) {
	s := serve(b, nil)
	_, m := s.loopConn(b)
	sn := uint32(1)
	tur := scsiPDU(testUnitReady, false, 0, nil)
	tur.BHS.SCSICommand().SetRead(false)
	for range 4 {
		m.run(tur, &sn)
	}
	for _, w := range []struct {
		name string
		p    *iscsi.PDU
	}{
		{"read4k", scsiPDU(cdbRW10(0x28, 8, 8), false, 4096, nil)},
		{"write4k", scsiPDU(cdbRW10(0x2a, 8, 8), true, 4096, nil)},
	} {
		b.Run(w.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(4096)
			for b.Loop() {
				if st := m.run(w.p, &sn); st != 0 {
					b.Fatalf("status %#x", st)
				}
			}
		})
	}
}
