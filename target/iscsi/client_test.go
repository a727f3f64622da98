package iscsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"softiser/internal/iscsi"
)

// rawInitiator speaks iSCSI PDU by PDU: what it sends is exactly what a test
// says, right or wrong.
type rawInitiator struct {
	t      testing.TB
	nc     net.Conn
	name   string
	isid   iscsi.ISID
	tsih   uint16
	cid    uint16
	cmdSN  uint32 // of the next non-immediate command
	expSN  uint32 // ExpStatSN
	itt    uint32
	maxSN  uint32
	params map[string]string // the target's answers
	crc    bool              // both digests are on
	damage int               // byte of the next PDU that is flipped, counted from 1
	rest   []byte            // of a PDU that the target has not taken; see flooder
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// pdu is a received PDU.
type pdu struct {
	iscsi.BHS
	data []byte
}

const ioTime = time.Minute // generous: the machine may be loaded

func dialRaw(t testing.TB, addr string) *rawInitiator {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	r := &rawInitiator{t: t, nc: nc, name: "iqn.2026-11.test:initiator", isid: iscsi.ISID{0x80, 1, 2, 3, 4, 5}, cmdSN: 1, itt: 0x10}
	t.Cleanup(func() { nc.Close() })
	return r
}

// write sends a PDU; DataSegmentLength is filled in.
func (r *rawInitiator) write(b *iscsi.BHS, data []byte) {
	r.t.Helper()
	b.SetDataLen(len(data))
	b.SetExpStatSN(r.expSN)
	buf := r.frame(b, data)
	if r.damage > 0 {
		buf[r.damage-1] ^= 0x10
		r.damage = 0
	}
	r.nc.SetWriteDeadline(time.Now().Add(ioTime))
	if _, err := r.nc.Write(buf); err != nil {
		r.t.Fatalf("write %v: %v", b.Opcode(), err)
	}
}

// frame puts a PDU together.
func (r *rawInitiator) frame(b *iscsi.BHS, data []byte) []byte {
	buf := append([]byte{}, b[:]...)
	if r.crc {
		buf = binary.LittleEndian.AppendUint32(buf, crc32.Checksum(buf, castagnoli))
	}
	at := len(buf)
	buf = append(append(buf, data...), make([]byte, iscsi.PadLen(len(data)))...)
	if r.crc && len(data) > 0 {
		buf = binary.LittleEndian.AppendUint32(buf, crc32.Checksum(buf[at:], castagnoli))
	}
	return buf
}

// tryRead receives a PDU, or the end of the connection.
func (r *rawInitiator) tryRead(wait time.Duration) (*pdu, error) {
	var p pdu
	r.nc.SetReadDeadline(time.Now().Add(wait))
	if _, err := io.ReadFull(r.nc, p.BHS[:]); err != nil {
		return nil, err
	}
	var bad error
	if r.crc {
		if bad = r.checkDigest(p.BHS[:]); bad != nil && bad != errBadDigest {
			return nil, bad
		}
	}
	n := p.DataLen()
	p.data = make([]byte, n+iscsi.PadLen(n))
	if _, err := io.ReadFull(r.nc, p.data); err != nil {
		return nil, err
	}
	if r.crc && n > 0 {
		if err := r.checkDigest(p.data); err != nil {
			return &p, err // the PDU is lost, the stream is not
		}
	}
	p.data = p.data[:n]
	if bad != nil {
		return &p, bad
	}
	if p.Opcode().Info().StatSN {
		r.maxSN = p.MaxCmdSN()
	}
	return &p, nil
}

var errBadDigest = errors.New("digest error")

func (r *rawInitiator) checkDigest(b []byte) error {
	var d [4]byte
	if _, err := io.ReadFull(r.nc, d[:]); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(d[:]) != crc32.Checksum(b, castagnoli) {
		return errBadDigest
	}
	return nil
}

func (r *rawInitiator) read() *pdu {
	r.t.Helper()
	p, err := r.tryRead(ioTime)
	if err != nil {
		r.t.Fatalf("read: %v", err)
	}
	r.status(p)
	return p
}

// status checks and counts StatSN where the PDU takes one.
func (r *rawInitiator) status(p *pdu) {
	r.t.Helper()
	switch op := p.Opcode(); {
	case op == iscsi.OpDataIn && !p.DataIn().HasStatus(), op == iscsi.OpR2T:
		return
	case op == iscsi.OpNopIn && p.ITT() == iscsi.ReservedTag:
		if p.StatSN() != r.expSN {
			r.t.Fatalf("NOP-In shows StatSN %d, want %d", p.StatSN(), r.expSN)
		}
		return
	default:
		if p.StatSN() != r.expSN {
			r.t.Fatalf("%v has StatSN %d, want %d", op, p.StatSN(), r.expSN)
		}
		r.expSN++
	}
}

// expect reads a PDU of one opcode.
func (r *rawInitiator) expect(op iscsi.Opcode) *pdu {
	r.t.Helper()
	p := r.read()
	if p.Opcode() != op {
		r.t.Fatalf("got %v (% x, %d bytes of data), want %v", p.Opcode(), p.BHS[:], len(p.data), op)
	}
	return p
}

// expectClosed waits for the end of the connection and closes its own side; PDUs
// before the end are dropped.
func (r *rawInitiator) expectClosed() {
	r.t.Helper()
	defer r.nc.Close()
	for {
		p, err := r.tryRead(ioTime)
		if err == nil {
			_ = p
			continue
		}
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			r.t.Fatal("the connection was not closed")
		}
		return
	}
}

// expectSilence checks that nothing has come by the time that the target has taken
// everything that was sent on the connection before: the next PDU answers a NOP-Out.
func (r *rawInitiator) expectSilence() {
	r.t.Helper()
	const tag = 0xb0000000 // none that newTag comes to
	var b iscsi.BHS
	n := b.NewNopOut()
	n.SetITT(tag)
	n.SetTTT(iscsi.ReservedTag)
	n.SetImmediate(true)
	n.SetFinal(true)
	n.SetCmdSN(r.cmdSN)
	r.write(&b, nil)
	if p := r.read(); p.Opcode() != iscsi.OpNopIn || p.ITT() != tag {
		r.t.Fatalf("got an unexpected %v for %#x", p.Opcode(), p.ITT())
	}
}

// silentFor checks that nothing comes for a while on a connection whose login waits for
// something: nothing else can be sent there.
func (r *rawInitiator) silentFor(d time.Duration) {
	r.t.Helper()
	p, err := r.tryRead(d)
	var ne net.Error
	if err == nil {
		r.t.Fatalf("got an unexpected %v", p.Opcode())
	}
	if !errors.As(err, &ne) || !ne.Timeout() {
		r.t.Fatalf("connection: %v", err)
	}
}

func keys(kv ...string) []byte {
	var b []byte
	for _, s := range kv {
		b = append(append(b, s...), 0)
	}
	return b
}

func parseKeys(b []byte) map[string]string {
	m := map[string]string{}
	for _, s := range strings.Split(strings.TrimRight(string(b), "\x00"), "\x00") {
		if k, v, ok := strings.Cut(s, "="); ok {
			m[k] = v
		}
	}
	return m
}

// loginRequest sends one Login Request.
func (r *rawInitiator) loginRequest(transit bool, csg, nsg iscsi.Stage, kv ...string) {
	r.t.Helper()
	var b iscsi.BHS
	l := b.NewLoginRequest()
	l.SetStages(transit, false, csg, nsg)
	l.SetISID(r.isid)
	l.SetTSIH(r.tsih)
	l.SetCID(r.cid)
	l.SetITT(r.itt)
	l.SetCmdSN(r.cmdSN)
	r.write(&b, keys(kv...))
}

// loginResponse reads one Login Response.
func (r *rawInitiator) loginResponse() (*pdu, map[string]string) {
	r.t.Helper()
	p, err := r.tryRead(ioTime)
	if err != nil {
		r.t.Fatalf("no Login Response: %v", err)
	}
	if p.Opcode() != iscsi.OpLoginResponse {
		r.t.Fatalf("got %v instead of a Login Response", p.Opcode())
	}
	r.expSN = p.StatSN() + 1
	return p, parseKeys(p.data)
}

// login opens a normal session in one exchange and returns the last response.
func (r *rawInitiator) login(target string, kv ...string) *pdu {
	r.t.Helper()
	all := append([]string{"InitiatorName=" + r.name, "TargetName=" + target, "SessionType=Normal"}, kv...)
	r.loginRequest(true, iscsi.StageOperational, iscsi.StageFullFeature, all...)
	p, m := r.loginResponse()
	r.params = m
	r.tsih = p.LoginResponse().TSIH()
	return p
}

// mustLogin is login that must succeed.
func (r *rawInitiator) mustLogin(target string, kv ...string) {
	r.t.Helper()
	p := r.login(target, kv...)
	if s := p.LoginResponse().Status(); s != iscsi.LoginSuccess {
		r.t.Fatalf("login: status %04x (%v)", uint16(s), s)
	}
	r.crc = r.params["DataDigest"] == "CRC32C"
	if !p.Final() || p.LoginResponse().NSG() != iscsi.StageFullFeature {
		r.t.Fatalf("login did not reach the full feature phase: % x", p.BHS[:])
	}
	if r.tsih == 0 {
		r.t.Fatal("TSIH is 0 after login")
	}
}

// newTag returns an unused initiator task tag.
func (r *rawInitiator) newTag() uint32 { r.itt++; return r.itt }

// command sends a SCSI Command and returns its tag.
type command struct {
	cdb       []byte
	lun       int
	read      bool
	write     bool
	edtl      uint32
	imm       []byte // immediate data
	more      bool   // F clear: Data-Out follow unasked for
	immediate bool
	attr      uint8
}

func (r *rawInitiator) command(c command) uint32 {
	r.t.Helper()
	var b iscsi.BHS
	s := b.NewSCSICommand()
	s.SetFinal(!c.more)
	s.SetRead(c.read)
	s.SetWrite(c.write)
	s.SetAttr(max(c.attr, 1))
	s.SetEDTL(c.edtl)
	s.SetCDB(c.cdb)
	s.SetLUN(iscsi.EncodeLUN(c.lun))
	tag := r.newTag()
	s.SetITT(tag)
	s.SetCmdSN(r.cmdSN)
	s.SetImmediate(c.immediate)
	if !c.immediate {
		r.cmdSN++
	}
	r.write(&b, c.imm)
	return tag
}

// dataOut sends a Data-Out.
func (r *rawInitiator) dataOut(itt, ttt, sn, off uint32, data []byte, final bool) {
	r.t.Helper()
	var b iscsi.BHS
	d := b.NewDataOut()
	d.SetITT(itt)
	d.SetTTT(ttt)
	d.SetDataSN(sn)
	d.SetOffset(off)
	d.SetFinal(final)
	r.write(&b, data)
}

// result is the end of a SCSI command.
type result struct {
	status   uint8
	data     []byte
	sense    []byte
	residual uint32
	flags    byte
}

// finish reads until the response of tag, answering R2Ts from out.
func (r *rawInitiator) finish(tag uint32, out []byte) result {
	r.t.Helper()
	var res result
	for {
		p := r.read()
		switch p.Opcode() {
		case iscsi.OpDataIn:
			d := p.DataIn()
			if d.ITT() != tag {
				r.t.Fatalf("Data-In for %#x while waiting for %#x", d.ITT(), tag)
			}
			end := int(d.Offset()) + len(p.data)
			if len(res.data) < end {
				res.data = append(res.data, make([]byte, end-len(res.data))...)
			}
			copy(res.data[d.Offset():], p.data)
			if d.HasStatus() {
				res.status, res.residual, res.flags = d.Status(), d.Residual(), d.ResidualFlags()
				return res
			}
		case iscsi.OpR2T:
			q := p.R2T()
			off, n := q.Offset(), q.Desired()
			for sn := uint32(0); n > 0; sn++ {
				c := min(n, 8192)
				r.dataOut(q.ITT(), q.TTT(), sn, off, out[off:off+c], c == n)
				off, n = off+c, n-c
			}
		case iscsi.OpSCSIResponse:
			s := p.SCSIResponse()
			if s.ITT() != tag {
				r.t.Fatalf("response for %#x while waiting for %#x", s.ITT(), tag)
			}
			res.status, res.residual, res.flags = s.Status(), s.Residual(), s.ResidualFlags()
			res.sense, _, _ = iscsi.ParseSense(p.data)
			return res
		case iscsi.OpNopIn: // a ping of the target, where a test has made those frequent
			if p.ITT() != iscsi.ReservedTag {
				r.t.Fatalf("NOP-In for %#x while waiting for a response", p.ITT())
			}
		default:
			r.t.Fatalf("got %v (reason or response %#x) while waiting for a response", p.Opcode(), p.BHS[2])
		}
	}
}

// do runs a command to its end.
func (r *rawInitiator) do(c command, out []byte) result {
	r.t.Helper()
	return r.finish(r.command(c), out)
}

// ready takes the unit attentions of a new nexus.
func (r *rawInitiator) ready() {
	r.t.Helper()
	for range 8 {
		if r.do(command{cdb: make([]byte, 6)}, nil).status == 0 {
			return
		}
	}
	r.t.Fatal("TEST UNIT READY never got GOOD")
}

func cdbRW10(op byte, lba uint32, blocks uint16) []byte {
	c := make([]byte, 10)
	c[0] = op
	binary.BigEndian.PutUint32(c[2:], lba)
	binary.BigEndian.PutUint16(c[7:], blocks)
	return c
}

func (r *rawInitiator) read10(lba uint32, blocks uint16) []byte {
	r.t.Helper()
	n := uint32(blocks) * 512
	res := r.do(command{cdb: cdbRW10(0x28, lba, blocks), read: true, edtl: n}, nil)
	if res.status != 0 || uint32(len(res.data)) != n {
		r.t.Fatalf("READ(10) %d+%d: status %#x, %d bytes, sense % x", lba, blocks, res.status, len(res.data), res.sense)
	}
	return res.data
}

func (r *rawInitiator) write10(lba uint32, data []byte) {
	r.t.Helper()
	res := r.do(command{cdb: cdbRW10(0x2a, lba, uint16(len(data)/512)), write: true, edtl: uint32(len(data))}, data)
	if res.status != 0 {
		r.t.Fatalf("WRITE(10) %d: status %#x, sense % x", lba, res.status, res.sense)
	}
}

// sendTask sends a task management request and returns the response code.
func (r *rawInitiator) sendTask(f iscsi.TaskFunction, lun int, ref, refSN uint32) uint32 {
	r.t.Helper()
	var b iscsi.BHS
	q := b.NewTaskRequest(f)
	q.SetImmediate(true)
	q.SetLUN(iscsi.EncodeLUN(lun))
	tag := r.newTag()
	q.SetITT(tag)
	q.SetRefTask(ref)
	q.SetRefCmdSN(refSN)
	q.SetCmdSN(r.cmdSN)
	r.write(&b, nil)
	return tag
}

func (r *rawInitiator) task(f iscsi.TaskFunction, lun int, ref, refSN uint32) uint8 {
	r.t.Helper()
	tag := r.sendTask(f, lun, ref, refSN)
	p := r.expect(iscsi.OpTaskResponse)
	if p.ITT() != tag {
		r.t.Fatalf("task management response for %#x, want %#x", p.ITT(), tag)
	}
	return p.TaskResponse().Response()
}

// answerPing waits for a ping of the target and answers it, which acknowledges what r
// has got.
func (r *rawInitiator) answerPing() {
	r.t.Helper()
	p := r.expect(iscsi.OpNopIn)
	if p.ITT() != iscsi.ReservedTag || p.TTT() == iscsi.ReservedTag {
		r.t.Fatalf("ping: ITT %#x TTT %#x", p.ITT(), p.TTT())
	}
	var b iscsi.BHS
	n := b.NewNopOut()
	n.SetITT(iscsi.ReservedTag)
	n.SetTTT(p.TTT())
	n.SetImmediate(true)
	n.SetFinal(true)
	n.SetCmdSN(r.cmdSN)
	r.write(&b, nil)
}

// nop pings the target.
func (r *rawInitiator) nop(data []byte) *pdu {
	r.t.Helper()
	r.sendNop(data)
	return r.expect(iscsi.OpNopIn)
}

func (r *rawInitiator) sendNop(data []byte) {
	r.t.Helper()
	var b iscsi.BHS
	n := b.NewNopOut()
	n.SetITT(r.newTag())
	n.SetTTT(iscsi.ReservedTag)
	n.SetImmediate(true)
	n.SetFinal(true)
	n.SetCmdSN(r.cmdSN)
	r.write(&b, data)
}

// logout closes the session in an orderly way.
func (r *rawInitiator) logout() {
	r.t.Helper()
	if code := r.logoutReason(iscsi.LogoutSession, 0); code != iscsi.LogoutClosed {
		r.t.Fatalf("logout: response %d", code)
	}
	r.expectClosed()
}

func (r *rawInitiator) logoutReason(reason iscsi.LogoutReason, cid uint16) uint8 {
	r.t.Helper()
	var b iscsi.BHS
	l := b.NewLogoutRequest(reason)
	l.SetImmediate(true)
	l.SetITT(r.newTag())
	l.SetCID(cid)
	l.SetCmdSN(r.cmdSN)
	r.write(&b, nil)
	for {
		p := r.read()
		switch p.Opcode() {
		case iscsi.OpLogoutResp:
			return p.LogoutResponse().Response()
		case iscsi.OpAsync: // the other connection has been dropped
		case iscsi.OpNopIn: // a ping, for the acknowledgement that it brings
		case iscsi.OpSCSIResponse, iscsi.OpDataIn, iscsi.OpR2T: // of commands that were still running
		default:
			r.t.Fatalf("got %v while waiting for the Logout Response", p.Opcode())
		}
	}
}

// pattern makes recognisable data.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8) ^ seed
	}
	return b
}

func mustEqual(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		i := 0
		for i < min(len(got), len(want)) && got[i] == want[i] {
			i++
		}
		t.Fatalf("%s: differs at byte %d of %d (want %d bytes)", what, i, len(got), len(want))
	}
}
