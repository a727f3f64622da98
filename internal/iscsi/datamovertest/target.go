package datamovertest

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"

	"softiser/internal/iscsi"
)

// Target serves a memory.
type Target struct {
	upper
	Disk   []byte
	login  *iscsi.LoginTarget
	params iscsi.Params
	full   bool // receive goroutine

	mu     sync.Mutex // guards what follows
	stat   uint32
	exp    uint32
	unsol  map[uint32]*job // commands whose unsolicited data is still coming
	jobs   []*job          // free
	seqMu  sync.Mutex      // of Sequence, which is called below down-calls
	seq    iscsi.Sequence
	Held   chan *iscsi.PDU // commands with opHold, for the test to answer
	Events chan *iscsi.PDU // other PDUs
	Done   chan *iscsi.Transfer
}

// job is a command of the target in execution.
type job struct {
	t       *Target
	bhs     iscsi.BHS
	ref     iscsi.Ref
	got     uint32 // unsolicited bytes so far
	xfers   [4]iscsi.Transfer
	segs    [4][][]byte
	pending int
	parts   uint32 // transfers in all, and started
	part    uint32
	base    uint32 // on the disk
	from, n uint32 // solicited range
	write   bool
	failed  error
	pdu     iscsi.PDU
}

func newTarget(tb testing.TB, dm iscsi.Datamover, s iscsi.Settings) *Target {
	t := &Target{Disk: make([]byte, diskSize), unsol: map[uint32]*job{},
		Held: make(chan *iscsi.PDU, 64), Events: make(chan *iscsi.PDU, 64), Done: make(chan *iscsi.Transfer, 64)}
	t.upper = upper{tb: tb, name: "target", dm: dm, end: &ending{ch: make(chan struct{})}}
	t.checkStack.Store(true)
	for i := range t.Disk {
		t.Disk[i] = byte(i*7 + i>>9)
	}
	t.login = iscsi.NewLoginTarget(iscsi.LoginTargetConfig{
		Profile: dm.KeyProfile(),
		Admit: func(*iscsi.LoginIdentity) (*iscsi.LoginGrant, error) {
			return &iscsi.LoginGrant{Settings: s, PortalGroupTag: 1}, nil
		},
		Bind: func(r *iscsi.LoginResult) (iscsi.LoginBinding, error) {
			return iscsi.LoginBinding{TSIH: 1, ExpCmdSN: r.CmdSN, MaxCmdSN: r.CmdSN + 63}, nil
		},
	})
	return t
}

// Sequence implements iscsi.Upper.
func (t *Target) Sequence() iscsi.Sequence {
	t.seqMu.Lock()
	defer t.seqMu.Unlock()
	return t.seq
}

func (t *Target) nextSequence() iscsi.Sequence {
	t.stat++
	t.seqMu.Lock()
	defer t.seqMu.Unlock()
	t.seq = iscsi.Sequence{StatSN: t.stat, ExpCmdSN: t.exp, MaxCmdSN: t.exp + 63}
	s := t.seq
	s.StatSN--
	return s
}

// ControlNotify implements iscsi.Upper.
func (t *Target) ControlNotify(p *iscsi.PDU) {
	t.upcall()
	for p != nil {
		next := p.Unlink()
		t.take(p)
		p = next
	}
}

// take takes one PDU: of the login, a command, its data, or what a test asks for.
func (t *Target) take(p *iscsi.PDU) {
	if !t.full {
		t.loginStep(p)
		return
	}
	switch p.BHS.Opcode() {
	case iscsi.OpSCSICommand:
		t.mu.Lock()
		t.exp = p.BHS.CmdSN() + 1
		t.mu.Unlock()
		if p.BHS.SCSICommand().CDB()[0] == opHold {
			t.Held <- keep(p)
			return
		}
		t.command(p)
	case iscsi.OpDataOut:
		t.unsolicited(p)
	case iscsi.OpNopOut:
		t.mu.Lock()
		var r iscsi.PDU
		n := r.BHS.NewNopIn()
		n.SetITT(p.BHS.ITT())
		n.SetSequence(t.nextSequence())
		r.Data = p.Data
		if len(r.Data) > t.dm.Limits().MaxControlData {
			r.Data = nil
		}
		t.send(&r)
		t.mu.Unlock()
		p.Release()
	default:
		t.Events <- p
	}
}

// holds reports whether the memory at off is b.
func (t *Target) holds(off int, b []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Equal(t.Disk[off:off+len(b)], b)
}

func (t *Target) send(p *iscsi.PDU) {
	if err := t.dm.SendControl(p); err != nil && t.end.n.Load() == 0 {
		t.tb.Logf("target: SendControl %s: %v", p.BHS.Opcode(), err)
	}
}

func (t *Target) loginStep(p *iscsi.PDU) {
	var resp iscsi.PDU
	done, err := t.login.Handle(p, &resp)
	p.Release()
	if err != nil {
		t.tb.Errorf("target: %v", err)
	}
	if done {
		r := t.login.Result()
		t.params, t.full = r.Params, true
		t.mu.Lock()
		t.stat, t.exp = r.StatSN, r.CmdSN
		t.seqMu.Lock()
		t.seq = iscsi.Sequence{StatSN: t.stat, ExpCmdSN: t.exp, MaxCmdSN: t.exp + 63}
		t.seqMu.Unlock()
		t.mu.Unlock()
		t.dm.NoticeKeyValues(&r.Params)
		if err := t.dm.Enable(); err != nil {
			t.tb.Errorf("target: Enable: %v", err)
		}
	}
	t.send(&resp)
}

func (t *Target) newJob() *job {
	if n := len(t.jobs); n > 0 {
		j := t.jobs[n-1]
		t.jobs = t.jobs[:n-1]
		return j
	}
	return &job{t: t}
}

// cut splits b as mode says, reusing dst.
func cut(dst [][]byte, b []byte, mode byte) [][]byte {
	dst = dst[:0]
	switch mode {
	case 0:
		return append(dst, b)
	case 1: // a first byte, then pages
		if len(b) > 1 {
			dst, b = append(dst, b[:1]), b[1:]
		}
		for len(b) > 4096 {
			dst, b = append(dst, b[:4096]), b[4096:]
		}
	default: // odd pieces
		for n := 3; len(b) > n; n = n*2 + 1 {
			dst, b = append(dst, b[:n]), b[n:]
		}
	}
	return append(dst, b)
}

// command executes a read or write.
func (t *Target) command(p *iscsi.PDU) {
	t.mu.Lock()
	defer t.mu.Unlock()
	j := t.newJob()
	j.bhs, j.ref, j.got, j.failed = p.BHS, p.Ref, uint32(len(p.Data)), nil
	c := j.bhs.SCSICommand()
	j.write = c.CDB()[0] == opWrite
	off := binary.BigEndian.Uint32(c.CDB()[2:])
	copy(t.Disk[off:], p.Data)
	p.Release()
	if j.write && !c.Final() { // unsolicited Data-Outs follow
		t.unsol[c.ITT()] = j
		return
	}
	t.start(j)
}

// unsolicited takes a Data-Out that nobody asked for.
func (t *Target) unsolicited(p *iscsi.PDU) {
	if p.Bad != nil {
		t.Events <- p
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	d := p.BHS.DataOut()
	j := t.unsol[d.ITT()]
	if j == nil {
		t.tb.Errorf("target: unsolicited data for %#x", d.ITT())
		p.Release()
		return
	}
	if d.Offset() != j.got {
		t.tb.Errorf("target: unsolicited data at %d, expected %d", d.Offset(), j.got)
	}
	off := binary.BigEndian.Uint32(j.bhs.SCSICommand().CDB()[2:])
	copy(t.Disk[off+d.Offset():], p.Data)
	j.got += uint32(len(p.Data))
	if d.Final() {
		delete(t.unsol, d.ITT())
		t.start(j)
	}
	p.Release()
}

// start moves the data of a job. Called with mu held.
func (t *Target) start(j *job) {
	c := j.bhs.SCSICommand()
	cdb := c.CDB()
	base, n := binary.BigEndian.Uint32(cdb[2:]), c.EDTL()
	from := uint32(0)
	if j.write {
		from = j.got
	}
	j.parts, j.part = max(uint32(cdb[6]), 1), 0
	j.base, j.from, j.n = base, from, n
	j.pending = 1 // this function
	for t.move(j) && !j.write {
	}
	if !j.write {
		t.respond(j) // behind its data
	}
	t.finish(j)
}

// move starts the next transfer of a job. A task's GetData come one after the
// other; its PutData may queue. Called with mu held.
func (t *Target) move(j *job) bool {
	for j.part < j.parts && j.failed == nil {
		i := j.part
		j.part++
		each := (j.n - j.from + j.parts - 1) / j.parts
		lo := min(j.from+i*each, j.n)
		hi := min(lo+each, j.n)
		if lo == hi {
			continue
		}
		c := j.bhs.SCSICommand()
		x := &j.xfers[i]
		j.segs[i] = cut(j.segs[i], t.Disk[j.base+lo:j.base+hi], c.CDB()[1])
		*x = iscsi.Transfer{ITT: c.ITT(), LUN: c.LUN(), Ref: &j.ref, Offset: lo, Len: hi - lo,
			Segs: j.segs[i], Final: hi == j.n, User: j}
		var err error
		t.outstanding.Add(1)
		if j.write {
			x.Unsolicited = j.got
			err = t.dm.GetData(x)
		} else {
			err = t.dm.PutData(x)
		}
		if err != nil {
			t.outstanding.Add(-1)
			j.failed = err
			return false
		}
		j.pending++
		return true
	}
	return false
}

// respond queues the SCSI Response. Called with mu held.
func (t *Target) respond(j *job) {
	j.pdu = iscsi.PDU{Ref: j.ref}
	r := j.pdu.BHS.NewSCSIResponse()
	r.SetITT(j.bhs.ITT())
	r.SetSequence(t.nextSequence())
	if j.failed != nil {
		r.SetStatus(2)
	}
	t.send(&j.pdu)
}

// finish counts one part of a job as done. Called with mu held.
func (t *Target) finish(j *job) {
	if j.pending--; j.pending > 0 {
		return
	}
	if j.write {
		t.respond(j)
	}
	t.jobs = append(t.jobs, j)
}

// DataCompletionNotify implements iscsi.Upper.
func (t *Target) DataCompletionNotify(x *iscsi.Transfer) {
	t.upcall()
	for x != nil {
		next := x.Unlink()
		t.completed(x)
		x = next
	}
}

func (t *Target) completed(x *iscsi.Transfer) {
	t.outstanding.Add(-1)
	j, ok := x.User.(*job)
	if !ok {
		t.Done <- x
		return
	}
	t.mu.Lock()
	if x.Err != nil {
		j.failed = x.Err
	}
	if j.write {
		t.move(j)
	}
	t.finish(j)
	t.mu.Unlock()
}
