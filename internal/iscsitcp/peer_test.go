package iscsitcp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/internal/loopback"
)

// The tests compute digests with the standard library.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// peer is a scripted other end of a connection in the full feature phase.
type peer struct {
	t  *testing.T
	nc net.Conn
	in *bufio.Reader // of nc
	c  *Conn
	up *datamovertest.Recorder
	p  iscsi.Params
	hd bool
	dd bool
}

func newPeer(t *testing.T, role iscsi.Role, change func(*iscsi.Params)) *peer {
	t.Helper()
	return newPeerWith(t, role, Config{SequenceTimeout: time.Hour}, change)
}

func newPeerWith(t *testing.T, role iscsi.Role, cfg Config, change func(*iscsi.Params)) *peer {
	t.Helper()
	r := loginPeer(t, role, cfg)
	p := iscsi.NewNegotiation(role, iscsi.DefaultSettings(), iscsi.KeyProfile{}, true).Params()
	p.MaxXmitDataSegmentLength, p.MaxRecvDataSegmentLength = 4096, 4096
	if change != nil {
		change(&p)
	}
	r.enable(p)
	r.c.Start(r.up)
	return r
}

// enable takes both ends into the full feature phase.
func (r *peer) enable(p iscsi.Params) {
	r.t.Helper()
	r.c.NoticeKeyValues(&p)
	if err := r.c.Enable(); err != nil {
		r.t.Fatal(err)
	}
	r.p, r.hd, r.dd = p, p.HeaderDigest == iscsi.DigestCRC32C, p.DataDigest == iscsi.DigestCRC32C
}

// loginPeer is a peer whose connection is in the login phase and has not been started.
func loginPeer(t *testing.T, role iscsi.Role, cfg Config) *peer {
	t.Helper()
	noLeaks(t)
	a, b := loopback.Pair(t)
	c, err := New(b, role, cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &peer{t: t, nc: a, in: bufio.NewReader(a), c: c, up: datamovertest.NewRecorder()}
	r.up.Numbers = iscsi.Sequence{StatSN: 7, ExpCmdSN: 8, MaxCmdSN: 9}
	t.Cleanup(func() {
		a.Close()
		c.Terminate(errors.New("end of the test"))
		<-c.Ended()
		r.up.Release()
	})
	a.SetDeadline(time.Now().Add(20 * time.Second))
	return r
}

// frame puts a PDU together with digests as negotiated.
func (r *peer) frame(b iscsi.BHS, ahs, data []byte) []byte {
	b.SetAHSLen(len(ahs))
	b.SetDataLen(len(data))
	out := append(b[:], ahs...)
	if r.hd {
		out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
	}
	pay := append(append([]byte(nil), data...), make([]byte, iscsi.PadLen(len(data)))...)
	out = append(out, pay...)
	if r.dd && len(data) > 0 {
		out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(pay, castagnoli))
	}
	return out
}

func (r *peer) send(b []byte) {
	r.t.Helper()
	if _, err := r.nc.Write(b); err != nil {
		r.t.Fatal(err)
	}
}

// recv reads one PDU and checks its digests.
func (r *peer) recv() (iscsi.BHS, []byte) {
	r.t.Helper()
	var b iscsi.BHS
	read := func(p []byte) {
		if _, err := io.ReadFull(r.in, p); err != nil {
			r.t.Fatal(err)
		}
	}
	read(b[:])
	if r.hd {
		var d [4]byte
		read(d[:])
		if binary.LittleEndian.Uint32(d[:]) != crc32.Checksum(b[:], castagnoli) {
			r.t.Fatal("header digest")
		}
	}
	n := b.DataLen()
	data := make([]byte, n+iscsi.PadLen(n))
	read(data)
	if r.dd && n > 0 {
		var d [4]byte
		read(d[:])
		if binary.LittleEndian.Uint32(d[:]) != crc32.Checksum(data, castagnoli) {
			r.t.Fatal("data digest")
		}
	}
	return b, data[:n]
}

// next returns the next PDU, or false when a transfer has ended and none has come.
func (r *peer) next() (iscsi.BHS, bool) {
	r.t.Helper()
	end := time.Now().Add(20 * time.Second)
	defer r.nc.SetReadDeadline(end)
	for len(r.up.Done) == 0 {
		_ = r.nc.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := r.in.Peek(1); err == nil {
			_ = r.nc.SetReadDeadline(end)
			b, _ := r.recv()
			return b, true
		} else if !os.IsTimeout(err) || time.Now().After(end) {
			r.t.Fatal(err)
		}
	}
	<-r.up.Done
	return iscsi.BHS{}, false
}

// getData starts a GetData of n bytes at off and returns its R2T.
func (r *peer) getData(n, off uint32, mem []byte) (*iscsi.Transfer, iscsi.R2T) {
	r.t.Helper()
	x := &iscsi.Transfer{ITT: 5, Ref: new(iscsi.Ref), LUN: 1 << 48, Offset: off, Len: n, Segs: [][]byte{mem}}
	if err := r.c.GetData(x); err != nil {
		r.t.Fatal(err)
	}
	r.c.Push()
	b, _ := r.recv()
	if b.Opcode() != iscsi.OpR2T {
		r.t.Fatalf("got %s", b.Opcode())
	}
	return x, b.R2T()
}

func dataOut(ttt, itt, sn, off uint32, final bool) iscsi.BHS {
	var b iscsi.BHS
	d := b.NewDataOut()
	d.SetTTT(ttt)
	d.SetITT(itt)
	d.SetDataSN(sn)
	d.SetOffset(off)
	d.SetFinal(final)
	return b
}
