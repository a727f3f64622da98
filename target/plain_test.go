package target_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"softiser/internal/iscsi"
)

// patience is how long a test waits for an answer that has to come: the machine may be
// loaded.
const patience = 2 * time.Minute

// plain is an initiator over TCP that may have many commands under way and answers the
// target's pings: what it is told is told to whoever waits for that tag.
type plain struct {
	t    testing.TB
	nc   net.Conn
	gone chan struct{} // closed when the connection has ended

	writing sync.Mutex // guards what follows
	cmdSN   uint32
	tag     uint32
	expSN   uint32
	waiting map[uint32]*answer
	pings   int // of the target, answered
}

// answer is what a request is told.
type answer struct {
	p    *plain
	tag  uint32
	data []byte // Data-In; valid when there is an answer
	last chan answered
}

type answered struct {
	iscsi.BHS
	data []byte
}

// logIn opens a normal session of an initiator port; status is that of the response,
// LoginUnavailable when the target gives up waiting and closes the connection.
func logIn(t testing.TB, addr, target string, port byte) (*plain, iscsi.LoginStatus) {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	p := &plain{t: t, nc: nc, cmdSN: 1, tag: 16, waiting: map[uint32]*answer{}, gone: make(chan struct{})}
	var b iscsi.BHS
	l := b.NewLoginRequest()
	l.SetStages(true, false, iscsi.StageOperational, iscsi.StageFullFeature)
	l.SetISID(iscsi.ISID{0x80, 0, 0, 0, 0, port})
	l.SetITT(p.tag)
	l.SetCmdSN(p.cmdSN)
	text := "InitiatorName=iqn.2026-11.test:plain" + string('0'+rune(port)) + "\x00SessionType=Normal\x00TargetName=" + target + "\x00"
	p.send(&b, []byte(text))
	nc.SetReadDeadline(time.Now().Add(patience))
	r, err := p.receive()
	if err == io.EOF {
		return p, iscsi.LoginUnavailable
	}
	if err != nil {
		t.Fatalf("no Login Response: %v", err)
	}
	status := r.LoginResponse().Status()
	p.expSN = r.StatSN() + 1
	nc.SetReadDeadline(time.Time{})
	go p.listen()
	return p, status
}

// mustLogIn is logIn that has to succeed; unit attentions of the LUNs are taken.
func mustLogIn(t testing.TB, addr, target string, port byte, luns ...int) *plain {
	t.Helper()
	p, status := logIn(t, addr, target, port)
	if status != iscsi.LoginSuccess {
		t.Fatalf("login: %v", status)
	}
	for _, lun := range luns {
		p.ready(lun)
	}
	return p
}

// ready takes the unit attentions of a LUN.
func (p *plain) ready(lun int) {
	p.t.Helper()
	for range 8 {
		if status, _ := p.do(lun, make([]byte, 6), nil, 0).status(); status == 0 {
			return
		}
	}
	p.t.Fatalf("LUN %d is never ready", lun)
}

// send transmits a PDU. A connection that has ended shows in what is waited for.
func (p *plain) send(b *iscsi.BHS, data []byte) {
	b.SetDataLen(len(data))
	b.SetExpStatSN(p.expSN)
	buf := append(append(append([]byte{}, b[:]...), data...), make([]byte, iscsi.PadLen(len(data)))...)
	_, _ = p.nc.Write(buf)
}

func (p *plain) receive() (r answered, err error) {
	if _, err := io.ReadFull(p.nc, r.BHS[:]); err != nil {
		return r, err
	}
	n := r.DataLen()
	r.data = make([]byte, n+iscsi.PadLen(n))
	_, err = io.ReadFull(p.nc, r.data)
	r.data = r.data[:n]
	return r, err
}

// listen hands out what comes until the connection ends.
func (p *plain) listen() {
	defer close(p.gone)
	for {
		r, err := p.receive()
		if err != nil {
			return
		}
		p.writing.Lock()
		if r.Opcode().Info().StatSN && r.ITT() != iscsi.ReservedTag {
			p.expSN = r.StatSN() + 1
		}
		a := p.waiting[r.ITT()]
		switch op := r.Opcode(); {
		case op == iscsi.OpNopIn && r.ITT() == iscsi.ReservedTag:
			var b iscsi.BHS
			n := b.NewNopOut()
			n.SetITT(iscsi.ReservedTag)
			n.SetTTT(r.BHS.TTT())
			n.SetLUN(binary.BigEndian.Uint64(r.BHS[8:]))
			n.SetImmediate(true)
			n.SetFinal(true)
			n.SetCmdSN(p.cmdSN)
			p.send(&b, nil)
			p.pings++
		case a == nil: // an asynchronous message
		case op == iscsi.OpDataIn && !r.DataIn().HasStatus():
			a.data = append(a.data, r.data...)
		case op == iscsi.OpDataIn:
			a.data = append(a.data, r.data...)
			fallthrough
		default:
			delete(p.waiting, a.tag)
			a.last <- r
		}
		p.writing.Unlock()
	}
}

// request sends a PDU that has an answer.
func (p *plain) request(fill func(b *iscsi.BHS, tag, cmdSN uint32) (numbered bool, data []byte)) *answer {
	p.writing.Lock()
	defer p.writing.Unlock()
	p.tag++
	var b iscsi.BHS
	a := &answer{p: p, tag: p.tag, last: make(chan answered, 1)}
	numbered, data := fill(&b, p.tag, p.cmdSN)
	if numbered {
		p.cmdSN++
	}
	p.waiting[a.tag] = a
	p.send(&b, data)
	return a
}

// start sends a command with immediate data, or one that reads n bytes.
func (p *plain) start(lun int, cdb, data []byte, n int) *answer {
	return p.request(func(b *iscsi.BHS, tag, cmdSN uint32) (bool, []byte) {
		s := b.NewSCSICommand()
		s.SetFinal(true)
		s.SetRead(n > 0)
		s.SetWrite(len(data) > 0)
		s.SetAttr(1)
		s.SetEDTL(uint32(max(n, len(data))))
		s.SetCDB(cdb)
		s.SetLUN(iscsi.EncodeLUN(lun))
		s.SetITT(tag)
		s.SetCmdSN(cmdSN)
		return true, data
	})
}

// do is start and its answer.
func (p *plain) do(lun int, cdb, data []byte, n int) *answer {
	p.t.Helper()
	a := p.start(lun, cdb, data, n)
	a.wait()
	return a
}

// manage sends a task management function as immediate.
func (p *plain) manage(f iscsi.TaskFunction, lun int, of *answer) *answer {
	return p.request(func(b *iscsi.BHS, tag, cmdSN uint32) (bool, []byte) {
		q := b.NewTaskRequest(f)
		q.SetImmediate(true)
		q.SetLUN(iscsi.EncodeLUN(lun))
		q.SetITT(tag)
		q.SetRefTask(iscsi.ReservedTag)
		if of != nil {
			q.SetRefTask(of.tag)
		}
		q.SetRefCmdSN(cmdSN)
		q.SetCmdSN(cmdSN)
		return false, nil
	})
}

// logout asks for the end of the session.
func (p *plain) logout() *answer {
	return p.request(func(b *iscsi.BHS, tag, cmdSN uint32) (bool, []byte) {
		l := b.NewLogoutRequest(iscsi.LogoutSession)
		l.SetImmediate(true)
		l.SetITT(tag)
		l.SetCmdSN(cmdSN)
		return false, nil
	})
}

// ping is a round trip: what the target has sent before has arrived after it.
func (p *plain) ping() {
	p.t.Helper()
	p.request(func(b *iscsi.BHS, tag, cmdSN uint32) (bool, []byte) {
		n := b.NewNopOut()
		n.SetITT(tag)
		n.SetTTT(iscsi.ReservedTag)
		n.SetImmediate(true)
		n.SetFinal(true)
		n.SetCmdSN(cmdSN)
		return false, nil
	}).wait()
}

// pinged is how many pings of the target have been answered.
func (p *plain) pinged() int {
	p.writing.Lock()
	defer p.writing.Unlock()
	return p.pings
}

// get returns the answer, or an error when none comes.
func (a *answer) get() (answered, error) {
	select {
	case r := <-a.last:
		a.last <- r
		return r, nil
	case <-a.p.gone:
		select {
		case r := <-a.last:
			a.last <- r
			return r, nil
		default:
			return answered{}, errors.New("the connection has ended")
		}
	case <-time.After(patience):
		return answered{}, errors.New("no answer")
	}
}

func (a *answer) wait() answered {
	a.p.t.Helper()
	r, err := a.get()
	if err != nil {
		a.p.t.Fatal(err)
	}
	return r
}

// pending reports whether there is no answer yet.
func (a *answer) pending() bool { return len(a.last) == 0 }

// status is the SCSI status, and of a CHECK CONDITION key<<16|ASC<<8|ASCQ.
func (a *answer) status() (status uint8, sense uint32) {
	a.p.t.Helper()
	r := a.wait()
	if r.Opcode() == iscsi.OpDataIn {
		return r.DataIn().Status(), 0
	}
	if r.Opcode() != iscsi.OpSCSIResponse {
		a.p.t.Fatalf("%v instead of a SCSI Response", r.Opcode())
	}
	s, _, _ := iscsi.ParseSense(r.data)
	if len(s) >= 14 {
		sense = uint32(s[2]&15)<<16 | uint32(s[12])<<8 | uint32(s[13])
	}
	return r.SCSIResponse().Status(), sense
}

// good is an answer that has to be GOOD; it returns what was read.
func (a *answer) good() []byte {
	a.p.t.Helper()
	if status, sense := a.status(); status != 0 {
		a.p.t.Fatalf("status %#x, sense %#06x", status, sense)
	}
	return a.data
}

// response is the response code of a task management function or logout.
func (a *answer) response() uint8 {
	a.p.t.Helper()
	return a.wait().BHS[2]
}
