package iscsitcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/iscsi"
)

// loginRequest sends a Login Request.
func (r *peer) loginRequest(data []byte) {
	r.t.Helper()
	var b iscsi.BHS
	b.NewLoginRequest().SetITT(1)
	r.send(r.frame(b, nil, data))
}

// loginResponse answers, last with the transit to the full feature phase.
func (r *peer) loginResponse(last bool) {
	r.t.Helper()
	var p iscsi.PDU
	l := p.BHS.NewLoginResponse()
	l.SetITT(1)
	if last {
		l.SetStages(true, false, iscsi.StageOperational, iscsi.StageFullFeature)
	}
	p.Data = []byte("Key=1")
	if err := r.c.SendControl(&p); err != nil {
		r.t.Fatal(err)
	}
	r.c.Push()
}

// full is what a login may have negotiated.
func (r *peer) full(change func(*iscsi.Params)) iscsi.Params {
	p := iscsi.NewNegotiation(r.c.role, iscsi.DefaultSettings(), iscsi.KeyProfile{}, true).Params()
	p.MaxXmitDataSegmentLength, p.MaxRecvDataSegmentLength = 4096, 4096
	if change != nil {
		change(&p)
	}
	return p
}

// TestLogin: a target reads one Login Request at a time, longer ones than 8192 bytes never,
// and digests begin behind the last Login Response, whichever was queued first.
func TestLogin(t *testing.T) {
	r := loginPeer(t, iscsi.RoleTarget, Config{})
	r.c.Start(r.up)
	r.loginRequest(make([]byte, 8192)) // more than what is negotiated below
	r.loginRequest([]byte("second"))
	p := r.up.PDU(t, "Login Request")
	if len(p.Data) != 8192 {
		t.Errorf("%d bytes of data", len(p.Data))
	}
	p.Release()
	waits := func() bool {
		r.c.mu.Lock()
		defer r.c.mu.Unlock()
		return r.c.paused
	}
	await.True(t, "the target waits for the answer", waits)
	if n := r.c.Stats().PDUsIn; n != 1 || len(r.up.PDUs) != 0 {
		t.Errorf("%d requests were read before the first was answered", n)
	}
	if l := r.c.Limits(); l.MaxControlData != iscsi.DefaultMRDSL || l.MaxPut != 0 || l.RecoveryLevel != 2 {
		t.Errorf("limits of login %+v", l)
	}
	r.loginResponse(false)
	if b, data := r.recv(); b.Opcode() != iscsi.OpLoginResponse || string(data) != "Key=1" {
		t.Errorf("got %s with %q", b.Opcode(), data)
	}
	if p = r.up.PDU(t, "second Login Request"); string(p.Data) != "second" {
		t.Errorf("got %q", p.Data)
	}
	p.Release()
	await.True(t, "the target waits for the second answer", waits)
	full := r.full(func(p *iscsi.Params) { p.HeaderDigest, p.DataDigest = iscsi.DigestCRC32C, iscsi.DigestCRC32C })
	r.c.NoticeKeyValues(&full)
	if err := r.c.Enable(); err != nil {
		t.Fatal(err)
	}
	r.loginResponse(true)
	if b, data := r.recv(); b.Opcode() != iscsi.OpLoginResponse || string(data) != "Key=1" {
		t.Errorf("got %s with %q", b.Opcode(), data)
	}
	r.hd, r.dd = true, true
	var ping, pong iscsi.PDU
	ping.BHS.NewNopOut().SetITT(3)
	r.send(r.frame(ping.BHS, nil, []byte("ping")))
	if p = r.up.PDU(t, "NOP-Out"); string(p.Data) != "ping" || p.Bad != nil {
		t.Errorf("got %q, %v", p.Data, p.Bad)
	}
	p.Release()
	pong.BHS.NewNopIn().SetITT(3)
	pong.Data = []byte("pong")
	if err := r.c.SendControl(&pong); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	if _, data := r.recv(); string(data) != "pong" {
		t.Errorf("got %q", data)
	}
	if l := r.c.Limits(); l.MaxControlData != 4096 || l.MaxPut != 1<<20 {
		t.Errorf("limits of the full feature phase %+v", l)
	}
	if err := r.c.Enable(); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("Enable once more: %v", err)
	}

	r = loginPeer(t, iscsi.RoleTarget, Config{})
	r.c.Start(r.up)
	var b iscsi.BHS
	b.NewLoginRequest().SetDataLen(8193)
	r.send(b[:])
	if err := r.up.End(t); err == nil || !strings.Contains(err.Error(), "8192 is the limit") {
		t.Errorf("a Login Request of 8193 bytes: %v", err)
	}
	if err := r.c.Enable(); err == nil || !strings.Contains(err.Error(), "8192 is the limit") {
		t.Errorf("Enable after the end: %v", err)
	}
}

// TestDetach: the stream is given up behind the last Login Response, when that has been
// sent, with every byte that follows still in it.
func TestDetach(t *testing.T) {
	r := loginPeer(t, iscsi.RoleTarget, Config{Upgradable: true})
	if _, err := r.c.Detach(); err == nil {
		t.Error("detached before login")
	}
	if l := r.c.Limits(); l.RecoveryLevel != 0 {
		t.Errorf("error recovery level %d for a stream that is given up", l.RecoveryLevel)
	}
	r.c.Start(r.up)
	r.loginRequest([]byte("Key=1"))
	r.send([]byte("MPA ID Req Frame"))
	r.up.PDU(t, "Login Request").Release()
	full := r.full(func(p *iscsi.Params) { p.RDMAExtensions = true })
	r.c.NoticeKeyValues(&full)
	if err := r.c.Enable(); err != nil {
		t.Fatal(err)
	}
	var p iscsi.PDU
	p.BHS.NewLoginResponse().SetITT(1)
	if err := r.c.SendControl(&p); err != nil {
		t.Fatal(err)
	}
	type result struct {
		nc  net.Conn
		err error
	}
	detached := make(chan result, 1)
	go func() {
		nc, err := r.c.Detach()
		detached <- result{nc, err}
	}()
	r.c.Push()
	if b, _ := r.recv(); b.Opcode() != iscsi.OpLoginResponse {
		t.Errorf("got %s", b.Opcode())
	}
	d := <-detached
	if d.err != nil {
		t.Fatal(d.err)
	}
	defer d.nc.Close()
	got := make([]byte, 16)
	_ = d.nc.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(d.nc, got); err != nil || string(got) != "MPA ID Req Frame" {
		t.Errorf("behind login %q, %v", got, err)
	}
	if len(r.up.Ended) != 0 || len(r.up.PDUs) != 0 {
		t.Error("an up-call came from a connection that was given up")
	}
	if _, err := r.c.Detach(); err == nil {
		t.Error("detached twice")
	}

	// A connection that ends meanwhile is not handed over.
	r = loginPeer(t, iscsi.RoleTarget, Config{Upgradable: true})
	r.c.Start(r.up)
	r.c.NoticeKeyValues(&full)
	if err := r.c.Enable(); err != nil {
		t.Fatal(err)
	}
	lost := errors.New("lost")
	r.c.Terminate(lost)
	if _, err := r.c.Detach(); !errors.Is(err, lost) {
		t.Errorf("after the end: %v", err)
	}
}

// TestLinger: a graceful end sends what is queued and FIN, hands up nothing more, and does
// not wait long for a peer that keeps its side open, silent or not.
func TestLinger(t *testing.T) {
	for _, talks := range []bool{false, true} {
		r := newPeerWith(t, iscsi.RoleTarget, Config{Linger: 20 * time.Millisecond}, nil)
		var p iscsi.PDU
		p.BHS.NewNopIn()
		if err := r.c.SendControl(&p); err != nil {
			t.Fatal(err)
		}
		r.c.Terminate(nil)
		if b, _ := r.recv(); b.Opcode() != iscsi.OpNopIn {
			t.Errorf("got %s", b.Opcode())
		}
		if _, err := r.in.ReadByte(); err != io.EOF {
			t.Errorf("behind it %v", err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for batch := r.pings(64); talks; {
				if _, err := r.nc.Write(batch); err != nil {
					return
				}
			}
		}()
		if err := r.up.End(t); err != nil {
			t.Errorf("talks %v: the end that was asked for is called %v", talks, err)
		}
		<-done
		if len(r.up.PDUs) != 0 {
			t.Errorf("talks %v: %d PDUs came up behind the end", talks, len(r.up.PDUs))
		}
		if err := r.c.SendControl(&p); err == nil {
			t.Error("SendControl works after the end")
		}
	}
}

// TestTerminateUnstarted: a connection that nobody starts gives its socket up all the same.
func TestTerminateUnstarted(t *testing.T) {
	for _, reason := range []error{nil, errors.New("not wanted")} {
		r := loginPeer(t, iscsi.RoleTarget, Config{})
		r.c.Terminate(reason)
		if _, err := r.in.ReadByte(); err != io.EOF {
			t.Errorf("%v: %v", reason, err)
		}
		r.c.Start(r.up) // for the peer's cleanup
	}
}

// TestStatistics: PDUs, bytes of SCSI data and those of them that were copied are counted,
// each once, at both ends.
func TestStatistics(t *testing.T) {
	digests := func(p *iscsi.Params) { p.HeaderDigest, p.DataDigest = iscsi.DigestCRC32C, iscsi.DigestCRC32C }
	is := func(r *peer, what string, want iscsi.DatamoverStats) {
		t.Helper()
		var got iscsi.DatamoverStats
		if !await.Until(func() bool { // who sends counts when the call is over
			got = r.c.Stats()
			calls := got.SendCalls == 0 == (want.PDUsOut == 0) && got.ReceiveCalls == 0 == (want.PDUsIn == 0)
			want.SendCalls, want.ReceiveCalls = got.SendCalls, got.ReceiveCalls
			return calls && got == want
		}) {
			t.Fatalf("%s: %+v, want %+v", what, got, want)
		}
	}
	r := newPeer(t, iscsi.RoleTarget, digests)
	is(r, "at first", iscsi.DatamoverStats{})
	var b iscsi.BHS
	b.NewNopOut()
	r.send(r.frame(b, nil, make([]byte, 32)))
	r.up.PDU(t, "NOP-Out").Release()
	is(r, "a ping", iscsi.DatamoverStats{PDUsIn: 1}) // its data are of no task
	_, q := r.getData(4096, 0, make([]byte, 4096))
	is(r, "an R2T", iscsi.DatamoverStats{PDUsIn: 1, PDUsOut: 1, OutstandingTransfers: 1})
	r.send(r.frame(dataOut(q.TTT(), 5, 0, 0, true), nil, make([]byte, 4096)))
	r.up.Completion(t)
	is(r, "a Data-Out", iscsi.DatamoverStats{PDUsIn: 2, PDUsOut: 1, PayloadIn: 4096})
	if err := r.c.PutData(transfer(5, make([]byte, 5000))); err != nil {
		t.Fatal(err)
	}
	r.c.Push()
	r.up.Completion(t)
	is(r, "two Data-Ins", iscsi.DatamoverStats{PDUsIn: 2, PDUsOut: 3, PayloadIn: 4096, PayloadOut: 5000})

	// A short read is cheaper to copy than to aim at.
	r = newPeer(t, iscsi.RoleInitiator, digests)
	mem := make([]byte, 500)
	r.command(mem)
	d := b.NewDataIn()
	d.SetITT(1)
	d.SetFinal(true)
	d.SetHasStatus(true)
	r.send(r.frame(b, nil, filled(500)))
	r.up.PDU(t, "response").Release()
	is(r, "a short read", iscsi.DatamoverStats{PDUsIn: 1, PDUsOut: 1, PayloadIn: 500, PayloadCopied: 500})
	if !bytes.Equal(mem, filled(500)) {
		t.Error("wrong data")
	}
}

// TestLongPDUsTakeMemory: what a PDU needs beyond a login's size is taken from what all
// connections share and given back with the PDU; where nothing is left it goes up without
// its data, and the stream goes on behind it.
func TestLongPDUsTakeMemory(t *testing.T) {
	const long = roomFree + 1
	m := &bound{most: bufferLen(long)}
	r := newPeerWith(t, iscsi.RoleTarget, Config{Memory: m}, func(p *iscsi.Params) { p.MaxRecvDataSegmentLength = 4 * long })
	send := func(n int) *iscsi.PDU {
		var b iscsi.BHS
		b.NewTextRequest().SetITT(uint32(n))
		r.send(r.frame(b, nil, filled(n)))
		p := r.up.PDU(t, "Text Request")
		if p.BHS.ITT() != uint32(n) || !p.NoRoom && !bytes.Equal(p.Data, filled(n)) || p.NoRoom && len(p.Data) != 0 {
			t.Errorf("%d bytes: a %s with %d", n, p.BHS.Opcode(), len(p.Data))
		}
		return p
	}
	for range 2 {
		short := send(roomFree)
		if short.NoRoom || m.used() != 0 {
			t.Errorf("%d bytes are reserved for a short PDU", m.used())
		}
		first := send(long)
		if first.NoRoom || m.used() != bufferLen(long) {
			t.Errorf("%d bytes are reserved", m.used())
		}
		second := send(long)
		if !second.NoRoom {
			t.Error("a PDU for which there is no room has come up whole")
		}
		second.Release()
		if m.used() != bufferLen(long) {
			t.Errorf("%d bytes are reserved after a PDU without", m.used())
		}
		first.Release()
		if m.used() != 0 {
			t.Errorf("%d bytes are reserved at the end", m.used())
		}
		short.Release()
	}
}
