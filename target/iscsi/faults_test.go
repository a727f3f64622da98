package iscsi

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"softiser/internal/iscsi"
)

// wire is a relay in front of a server that damages, drops or cuts what goes
// through it.
type wire struct {
	ln     net.Listener
	fate   func(up bool, header, data []byte) (drop bool) // of each PDU; nil: a stream of bytes
	mu     sync.Mutex
	conns  []net.Conn // guarded by mu
	budget int        // guarded by mu: bytes until the newest connection is cut; 0: never
	wg     sync.WaitGroup
}

func newWire(t *testing.T, to string, fate func(up bool, header, data []byte) bool) *wire {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{ln: ln, fate: fate}
	w.wg.Add(1)
	go func() {
		defer w.wg.Done()
		for {
			a, err := ln.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				a.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, a, b)
			w.mu.Unlock()
			w.wg.Add(2)
			if fate != nil {
				go w.pdus(b, a, true)
				go w.pdus(a, b, false)
			} else {
				go w.relay(b, a)
				go w.relay(a, b)
			}
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		w.mu.Lock()
		for _, c := range w.conns {
			c.Close()
		}
		w.mu.Unlock()
		w.wg.Wait()
	})
	return w
}

// pdus passes PDUs on, which have both digests once login is over.
func (w *wire) pdus(dst, src net.Conn, up bool) {
	defer w.wg.Done()
	defer dst.Close()
	defer src.Close()
	for {
		header := make([]byte, iscsi.BHSLen, iscsi.BHSLen+4)
		if _, err := io.ReadFull(src, header); err != nil {
			return
		}
		b := (*iscsi.BHS)(header)
		n := b.DataLen() + iscsi.PadLen(b.DataLen())
		if op := b.Opcode(); op != iscsi.OpLoginRequest && op != iscsi.OpLoginResponse {
			header = header[:iscsi.BHSLen+4]
			if _, err := io.ReadFull(src, header[iscsi.BHSLen:]); err != nil {
				return
			}
			if n > 0 {
				n += 4
			}
		}
		data := make([]byte, n)
		if _, err := io.ReadFull(src, data); err != nil {
			return
		}
		if w.fate(up, header, data) {
			continue
		}
		if _, err := dst.Write(append(header, data...)); err != nil {
			return
		}
	}
}

// relay passes bytes on until the budget is spent.
func (w *wire) relay(dst, src net.Conn) {
	defer w.wg.Done()
	defer dst.Close()
	defer src.Close()
	b := make([]byte, 3000)
	for {
		n, err := src.Read(b)
		if err != nil {
			return
		}
		w.mu.Lock()
		if w.budget > 0 {
			if w.budget -= n; w.budget <= 0 {
				n, w.budget = max(n+w.budget, 0), 0
				err = io.ErrClosedPipe
			}
		}
		w.mu.Unlock()
		if _, e := dst.Write(b[:n]); e != nil || err != nil {
			return
		}
	}
}

// cutAfter cuts whatever connection is in use after n bytes.
func (w *wire) cutAfter(n int) {
	w.mu.Lock()
	w.budget = n
	w.mu.Unlock()
}

// survivor is an initiator that runs one command at a time through a wire, and
// recovers: at level 1 with SNACKs and retries, at level 2 by moving the task to a
// new connection.
type survivor struct {
	t     *testing.T
	s     *server
	w     *wire
	r     *rawInitiator
	level int
	cid   uint16
	moves int // connections that were lost
	asks  int // SNACKs and retries
}

// job is one command and what is known of it.
type job struct {
	c      command
	tag    uint32
	sn     uint32
	in     []byte
	out    []byte
	dataSN uint32 // next Data-In
	r2tSN  uint32 // next R2T
}

var errLost = errors.New("the connection is lost")

// send writes a PDU; false means that the connection is lost.
func (v *survivor) send(b *iscsi.BHS, data []byte) bool {
	r := v.r
	b.SetDataLen(len(data))
	b.SetExpStatSN(r.expSN)
	_, err := r.nc.Write(r.frame(b, data))
	return err == nil
}

func (v *survivor) command(j *job) bool {
	var b iscsi.BHS
	c := b.NewSCSICommand()
	c.SetFinal(true)
	c.SetRead(j.c.read)
	c.SetWrite(j.c.write)
	c.SetAttr(1)
	c.SetEDTL(j.c.edtl)
	c.SetCDB(j.c.cdb)
	c.SetITT(j.tag)
	c.SetCmdSN(j.sn)
	return v.send(&b, j.c.imm)
}

func (v *survivor) snack(kind iscsi.SNACKType, itt, beg, run uint32) bool {
	v.asks++
	var b iscsi.BHS
	q := b.NewSNACK(kind)
	q.SetITT(itt)
	q.SetTTT(iscsi.ReservedTag)
	q.SetBegRun(beg)
	q.SetRunLength(run)
	return v.send(&b, nil)
}

// do runs a command to its GOOD end.
func (v *survivor) do(c command, out []byte) []byte {
	v.t.Helper()
	r := v.r
	j := &job{c: c, tag: r.newTag(), sn: r.cmdSN, out: out, in: make([]byte, 0, c.edtl)}
	r.cmdSN++
	ok := v.command(j)
	for deadline := time.Now().Add(2 * ioTime); ; {
		if time.Now().After(deadline) {
			v.t.Fatalf("command %#x makes no progress: %d of %d bytes, next Data-In %d, next R2T %d", j.tag, len(j.in), c.edtl, j.dataSN, j.r2tSN)
		}
		if !ok {
			v.recover(j)
			ok = true
		}
		done, err := v.step(j)
		if done {
			return j.in
		}
		ok = err == nil
	}
}

// step handles one PDU, or its absence.
func (v *survivor) step(j *job) (done bool, err error) {
	r := v.r
	p, err := r.tryRead(100 * time.Millisecond)
	var ne net.Error
	switch {
	case errors.As(err, &ne) && ne.Timeout():
		return false, v.nudge(j)
	case errors.Is(err, errBadDigest) && p != nil:
		return false, nil // lost; found by its number
	case err != nil:
		return false, errLost
	}
	takes := p.Opcode() != iscsi.OpDataIn && p.Opcode() != iscsi.OpR2T && !(p.Opcode() == iscsi.OpNopIn && p.ITT() == iscsi.ReservedTag)
	if takes && p.StatSN() != r.expSN {
		if iscsi.SerialLess(r.expSN, p.StatSN()) && !v.snack(iscsi.SNACKStatus, iscsi.ReservedTag, r.expSN, p.StatSN()-r.expSN+1) {
			return false, errLost
		}
		return false, nil // asked for again, this one included
	}
	ok := true
	switch p.Opcode() {
	case iscsi.OpDataIn:
		d := p.DataIn()
		if d.ITT() != j.tag || iscsi.SerialLess(d.DataSN(), j.dataSN) {
			break
		}
		if d.DataSN() != j.dataSN {
			ok = v.snack(iscsi.SNACKData, j.tag, j.dataSN, d.DataSN()-j.dataSN+1)
			break
		}
		if int(d.Offset()) != len(j.in) {
			v.t.Fatalf("Data-In %d at %d, want %d", d.DataSN(), d.Offset(), len(j.in))
		}
		j.in = append(j.in, p.data...)
		j.dataSN++
		if d.Acknowledge() {
			var b iscsi.BHS
			q := b.NewSNACK(iscsi.SNACKDataACK)
			q.SetITT(iscsi.ReservedTag)
			q.SetTTT(d.TTT())
			q.SetLUN(d.LUN())
			q.SetBegRun(j.dataSN)
			ok = v.send(&b, nil)
		}
	case iscsi.OpR2T:
		q := p.R2T()
		if q.ITT() != j.tag || iscsi.SerialLess(q.R2TSN(), j.r2tSN) {
			break
		}
		if q.R2TSN() != j.r2tSN {
			ok = v.snack(iscsi.SNACKData, j.tag, j.r2tSN, q.R2TSN()-j.r2tSN+1)
			break
		}
		j.r2tSN++
		off, n := q.Offset(), q.Desired()
		for sn := uint32(0); n > 0 && ok; sn++ {
			c := min(n, 4096)
			var b iscsi.BHS
			d := b.NewDataOut()
			d.SetITT(j.tag)
			d.SetTTT(q.TTT())
			d.SetDataSN(sn)
			d.SetOffset(off)
			d.SetFinal(c == n)
			ok = v.send(&b, j.out[off:off+c])
			off, n = off+c, n-c
		}
	case iscsi.OpSCSIResponse:
		s := p.SCSIResponse()
		if s.ITT() == j.tag && s.ExpDataSN() > j.dataSN { // data is missing: before the status is acknowledged
			ok = v.snack(iscsi.SNACKData, j.tag, j.dataSN, 0) && v.snack(iscsi.SNACKStatus, iscsi.ReservedTag, r.expSN, 1)
			break
		}
		r.expSN++
		if s.ITT() != j.tag {
			break
		}
		if s.Status() != 0 {
			v.t.Fatalf("status %#x", s.Status())
		}
		return true, nil
	case iscsi.OpReject:
		r.expSN++
		if rej := p.Reject(); rej.Reason() == iscsi.RejectDataDigest && iscsi.Opcode(p.data[0]&0x3f) == iscsi.OpSCSICommand {
			v.asks++
			ok = v.command(j)
		}
	case iscsi.OpNopIn:
		if p.ITT() == iscsi.ReservedTag {
			break
		}
		r.expSN++
		if iscsi.SerialLessEq(p.ExpCmdSN(), j.sn) { // the command has not arrived
			v.asks++
			ok = v.command(j)
		}
	default:
		if takes {
			r.expSN++
		}
	}
	if !ok {
		return false, errLost
	}
	return false, nil
}

// nudge looks for what was lost at the end of a run: it pings, which shows gaps in
// StatSN and CmdSN, and asks for data or an R2T that may be missing.
func (v *survivor) nudge(j *job) error {
	var b iscsi.BHS
	n := b.NewNopOut()
	n.SetITT(v.r.newTag())
	n.SetCmdSN(v.r.cmdSN)
	if !v.send(&b, nil) {
		return errLost
	}
	sn := j.dataSN
	if j.c.write {
		sn = j.r2tSN
	}
	// Rejected when nothing is missing.
	if !v.snack(iscsi.SNACKData, j.tag, sn, 0) {
		return errLost
	}
	return nil
}

// recover moves the command to a new connection.
func (v *survivor) recover(j *job) {
	v.t.Helper()
	if v.level < 2 {
		v.t.Fatal("the connection was lost at level 1")
	}
	v.w.cutAfter(0)
	v.moves++
	old := v.r
	old.nc.Close()
	v.cid++
	x := dialRaw(v.t, v.w.ln.Addr().String())
	x.isid, x.tsih, x.cid, x.cmdSN, x.itt = old.isid, old.tsih, v.cid, old.cmdSN, old.itt
	x.mustLogin(testIQN, "HeaderDigest=CRC32C", "DataDigest=CRC32C", "MaxRecvDataSegmentLength=4096")
	v.r = x
	if code := x.logoutReason(iscsi.LogoutRecovery, old.cid); code != iscsi.LogoutClosed {
		v.t.Fatalf("logout for recovery: response %d", code)
	}
	sn := j.dataSN
	if j.c.write {
		sn = j.r2tSN
	}
	switch code := x.reassign(j.tag, sn); code {
	case iscsi.TaskComplete:
	case iscsi.TaskNotFound: // it has never arrived
		if !v.command(j) {
			v.t.Fatal("the new connection is lost")
		}
	default:
		v.t.Fatalf("TASK REASSIGN: response %d", code)
	}
}

// verify writes and reads at random and compares with a copy, until the rounds are
// over.
func (v *survivor) verify(rnd *rand.Rand, rounds int, before func()) {
	v.t.Helper()
	const blocks = 256
	model := make([]byte, blocks*512)
	v.do(command{cdb: cdbRW10(0x2a, 0, blocks), write: true, edtl: blocks * 512}, model)
	for round := range rounds {
		if before != nil {
			before()
		}
		at := rnd.IntN(blocks)
		n := 1 + rnd.IntN(blocks-at)
		lo, hi := at*512, (at+n)*512
		if rnd.IntN(2) == 0 {
			copy(model[lo:hi], pattern(hi-lo, byte(round)))
			c := command{cdb: cdbRW10(0x2a, uint32(at), uint16(n)), write: true, edtl: uint32(hi - lo)}
			if rnd.IntN(2) == 0 {
				c.imm = model[lo:min(hi, lo+4096)]
			}
			v.do(c, model[lo:hi])
			continue
		}
		got := v.do(command{cdb: cdbRW10(0x28, uint32(at), uint16(n)), read: true, edtl: uint32(hi - lo)}, nil)
		if !bytes.Equal(got, model[lo:hi]) {
			v.t.Fatalf("round %d: %d blocks at %d differ", round, n, at)
		}
	}
}

func (s *server) survivor(t *testing.T, level int, fate func(bool, []byte, []byte) bool) *survivor {
	t.Helper()
	v := &survivor{t: t, s: s, level: level}
	v.w = newWire(t, s.addr, fate)
	v.r = dialRaw(t, v.w.ln.Addr().String())
	v.r.mustLogin(testIQN, atLevel(level, withDigests...)...)
	return v
}

// PDUs of every kind are damaged in their data or header, or dropped, in both
// directions; level 1 repairs it within the connection.
func TestRandomDamage(t *testing.T) {
	s := serve(t, level(1))
	rnd := rand.New(rand.NewPCG(3, 1))
	var mu sync.Mutex
	on, hits, last := false, map[string]int{}, [2]bool{}
	v := s.survivor(t, 1, func(up bool, header, data []byte) (drop bool) {
		mu.Lock()
		defer mu.Unlock()
		side := 0
		if up {
			side = 1
		}
		was := last[side]
		last[side] = false
		if !on || rnd.IntN(25) != 0 {
			return false
		}
		kind := (*iscsi.BHS)(header).Opcode().String()
		switch n := rnd.IntN(3); {
		case n == 0:
			hits[kind+" dropped"]++
			return true
		case n == 1 && len(data) > 0:
			hits[kind+" data"]++
			data[rnd.IntN(len(data))] ^= 0x40
		case !was: // two in a row may end the connection (RFC 7143 §7.7), and so may a damaged length
			last[side] = true
			hits[kind+" header"]++
			header[16+rnd.IntN(len(header)-16)] ^= 0x40
		}
		return false
	})
	v.r.ready()
	mu.Lock()
	on = true
	mu.Unlock()
	v.verify(rand.New(rand.NewPCG(5, 5)), 60, nil)
	mu.Lock()
	defer mu.Unlock()
	st := s.Status()
	t.Logf("%v; %d SNACKs and retries", hits, v.asks)
	if len(hits) < 6 || st.Logins != 1 || len(st.Sessions) != 1 {
		t.Errorf("%v, %d logins, %d sessions", hits, st.Logins, len(st.Sessions))
	}
}

// Connections are cut at random places; level 2 carries every command over.
func TestRandomCuts(t *testing.T) {
	s := serve(t, level(2))
	v := s.survivor(t, 2, nil)
	v.r.ready()
	rnd := rand.New(rand.NewPCG(8, 8))
	v.verify(rand.New(rand.NewPCG(9, 9)), 60, func() {
		if rnd.IntN(2) == 0 {
			v.w.cutAfter(1 + rnd.IntN(60000))
		}
	})
	st := s.Status()
	t.Logf("%d connections were cut", v.moves)
	if v.moves == 0 || st.Logins != 1 || len(st.Sessions) != 1 {
		t.Errorf("%d cuts, %d logins, %d sessions", v.moves, st.Logins, len(st.Sessions))
	}
}

// FuzzRecovery sends a session at level 2 over TCP PDUs of any content, cuts the
// connection, and sends the rest on another one. Nothing may panic, hang or be left
// behind.
func FuzzRecovery(f *testing.F) {
	pdu := func(change func(b *iscsi.BHS)) []byte {
		var b iscsi.BHS
		change(&b)
		return b[:]
	}
	read := pdu(func(b *iscsi.BHS) {
		c := b.NewSCSICommand()
		c.SetFinal(true)
		c.SetRead(true)
		c.SetEDTL(8192)
		c.SetCDB(cdbRW10(0x28, 0, 16))
		c.SetITT(5)
		c.SetCmdSN(1)
	})
	write := pdu(func(b *iscsi.BHS) {
		c := b.NewSCSICommand()
		c.SetFinal(true)
		c.SetWrite(true)
		c.SetEDTL(8192)
		c.SetCDB(cdbRW10(0x2a, 0, 16))
		c.SetITT(6)
		c.SetCmdSN(2)
	})
	snack := func(k iscsi.SNACKType, itt, beg, run uint32) []byte {
		return pdu(func(b *iscsi.BHS) {
			q := b.NewSNACK(k)
			q.SetITT(itt)
			q.SetTTT(iscsi.ReservedTag)
			q.SetBegRun(beg)
			q.SetRunLength(run)
		})
	}
	logout := pdu(func(b *iscsi.BHS) { b.NewLogoutRequest(iscsi.LogoutRecovery) })
	reassign := pdu(func(b *iscsi.BHS) { b.NewTaskRequest(iscsi.TaskReassign).SetRefTask(5) })
	abort := pdu(func(b *iscsi.BHS) { b.NewTaskRequest(iscsi.AbortTask).SetRefTask(6) })
	f.Add(bytes.Join([][]byte{read, snack(iscsi.SNACKData, 5, 0, 0), snack(iscsi.SNACKStatus, iscsi.ReservedTag, 0, 0)}, nil), logout)
	f.Add(bytes.Join([][]byte{read, write, snack(iscsi.SNACKData, 6, 0, 1)}, nil), bytes.Join([][]byte{logout, reassign, abort}, nil))
	f.Add(bytes.Join([][]byte{write, snack(iscsi.SNACKRData, 5, 0, 0)}, nil), bytes.Join([][]byte{abort, logout, reassign}, nil))
	s := serve(f, level(2))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		r := dialRaw(t, s.addr)
		defer r.nc.Close()
		r.mustLogin(testIQN, atLevel(2)...)
		r.throw(first)
		x := dialRaw(t, s.addr)
		defer x.nc.Close()
		x.isid, x.tsih, x.cid, x.cmdSN = r.isid, r.tsih, 1, 3
		if st := x.login(testIQN).LoginResponse().Status(); st == iscsi.LoginSuccess {
			x.throw(second)
		}
		if sess := s.sessionByTSIH(r.tsih); sess != nil {
			sess.shut(errKilled)
			<-sess.done
			sess.mu.Lock()
			used := sess.order.seq.win.used
			sess.mu.Unlock()
			if used != 0 {
				t.Fatalf("%d slots are left", used)
			}
		}
		if n := s.bursts.outstanding(); n != 0 {
			t.Fatalf("%d bursts are left", n)
		}
	})
}

// throw sends bytes as PDUs, ends its side, and takes what comes back until the target
// has ended the connection.
func (r *rawInitiator) throw(b []byte) {
	for len(b) >= iscsi.BHSLen {
		h := iscsi.BHS(b[:iscsi.BHSLen])
		b = b[iscsi.BHSLen:]
		h.SetAHSLen(0)
		n := min(h.DataLen(), len(b), 8192)
		h.SetDataLen(n)
		if _, err := r.nc.Write(r.frame(&h, b[:n])); err != nil {
			break // it has ended the connection already
		}
		b = b[n:]
	}
	r.nc.(*net.TCPConn).CloseWrite()
	r.nc.SetReadDeadline(time.Now().Add(ioTime))
	if _, err := io.Copy(io.Discard, r.nc); errors.Is(err, os.ErrDeadlineExceeded) {
		r.t.Fatal("the target keeps a connection whose peer has ended its side")
	}
}
