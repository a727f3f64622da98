package nvmetcp_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"softiser/internal/crc32c"
	"softiser/internal/loopback"
	"softiser/internal/nvme"
	"softiser/internal/nvme/queuetest"
	. "softiser/internal/nvmetcp"
)

// serve puts a disk on the controller's side of a connection and starts it.
func serve(t testing.TB, nc net.Conn, cfg Config, mem []byte) *queuetest.Disk {
	t.Helper()
	c, err := NewController(nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	d := queuetest.NewDisk(t, c, mem)
	c.SetEntries(queuetest.Entries)
	c.Start(d)
	return d
}

// host speaks NVMe/TCP, one PDU after the other.
type host struct {
	t       testing.TB
	disk    *queuetest.Disk // whose memory the test looks at; see fence
	nc      *net.TCPConn
	digests Digests
	limits  Limits
	cid     uint16
}

func start(t testing.TB, cfg Config, q ICReq, mem []byte) (*host, *queuetest.Disk) {
	t.Helper()
	client, server := loopback.Pair(t)
	d := serve(t, server, cfg, mem)
	h := &host{t: t, disk: d, nc: client, digests: q.Digests}
	h.limits = Limits{MaxData: 64 << 20, Align: (int(q.HPDA) + 1) * 4}
	h.write(q.AppendTo(nil))
	b := make([]byte, ICLen)
	h.read(b)
	r, f := ParseICResp(b)
	if f != nil || r.Digests != q.Digests {
		t.Fatalf("ICResp %+v, %v", r, f)
	}
	h.limits.Digests = q.Digests
	return h, d
}

// close ends the host's side and checks that the controller's ends well.
func (h *host) close(d *queuetest.Disk) {
	h.t.Helper()
	h.nc.Close()
	if err := d.Over(); err != nil {
		h.t.Errorf("the connection ended with %v", err)
	}
}

// fence orders what the test does with the disk's memory and what the disk does,
// as the socket between them does.
func (h *host) fence() {
	if h.disk != nil {
		h.disk.Fence()
	}
}

func (h *host) write(b []byte) {
	h.t.Helper()
	h.fence()
	if _, err := h.nc.Write(b); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) read(b []byte) {
	h.t.Helper()
	if _, err := io.ReadFull(h.nc, b); err != nil {
		h.t.Fatal(err)
	}
	h.fence()
}

// pdu makes a whole PDU of a header that says what belongs to it.
func pdu(header, data []byte) []byte {
	h := (*CH)(header)
	b := slices.Clone(header)
	if h.Flags()&FlagHDGST != 0 {
		b = binary.LittleEndian.AppendUint32(b, crc32c.Update(0, header))
	}
	if len(data) > 0 {
		b = append(b, make([]byte, h.PDO()-len(b))...)
		b = append(b, data...)
		if h.Flags()&FlagDDGST != 0 {
			b = binary.LittleEndian.AppendUint32(b, crc32c.Update(0, data))
		}
	}
	return b
}

// command makes a capsule. data goes with it; n is the length of what does not.
func (h *host) command(op nvme.Opcode, at int, data []byte, n int) []byte {
	h.cid++
	var c CapsuleCmd
	s := c.SQE()
	s.Init(op, 1)
	s.SetCID(h.cid)
	s.ReadWrite().SetRange(uint64(at), 1)
	if data != nil {
		s.SGL().SetBlock(nvme.SGLInCapsule, 0, uint32(len(data)))
	} else {
		s.SGL().SetBlock(nvme.SGLTransport, 0, uint32(n))
	}
	c.SetHeader(h.digests, uint32(len(data)), 0)
	return pdu(c[:], data)
}

// next reads a PDU.
func (h *host) next() (header, data []byte) {
	h.t.Helper()
	b := make([]byte, CHLen)
	h.read(b)
	lay, f := (*CH)(b).Check(&h.limits)
	if f != nil {
		h.t.Fatalf("%x: %v", b, f)
	}
	b = append(b, make([]byte, int((*CH)(b).PLen())-CHLen)...)
	h.read(b[CHLen:])
	if lay.Digest > 0 && binary.LittleEndian.Uint32(b[lay.HLen:]) != crc32c.Update(0, b[:lay.HLen]) {
		h.t.Fatalf("%s: header digest", (*CH)(b).Type())
	}
	if lay.Data > 0 {
		data = b[lay.PDO:][:lay.Data]
		if lay.DDigest > 0 && binary.LittleEndian.Uint32(b[lay.PDO+int(lay.Data):]) != crc32c.Update(0, data) {
			h.t.Fatalf("%s: data digest", (*CH)(b).Type())
		}
	}
	return b[:lay.HLen], data
}

// response reads PDUs until the command ends, and returns the data that came.
func (h *host) response(send []byte) (got []byte, s nvme.Status) {
	h.t.Helper()
	for {
		b, data := h.next()
		switch (*CH)(b).Type() {
		case TypeC2HData:
			d := (*Data)(b)
			if d.CCCID() != h.cid || int(d.Offset()) != len(got) || int(d.Length()) != len(data) {
				h.t.Fatalf("C2HData %x behind %d bytes", b, len(got))
			}
			got = append(got, data...)
			if d.CH().Flags()&FlagSuccess != 0 {
				return got, nvme.Success
			}
		case TypeR2T:
			d := (*Data)(b)
			if d.CCCID() != h.cid {
				h.t.Fatalf("R2T %x for command %d", b, h.cid)
			}
			h.answer(d, send)
		case TypeCapsuleResp:
			e := (*CapsuleResp)(b).CQE()
			if e.CID() != h.cid {
				h.t.Fatalf("response %x to command %d", b, h.cid)
			}
			return got, e.Status()
		default:
			h.t.Fatalf("%s: %x", (*CH)(b).Type(), b)
		}
	}
}

// answer sends what an R2T asks for, in two H2CData if it can be divided.
func (h *host) answer(q *Data, send []byte) {
	h.t.Helper()
	off, n := q.Offset(), q.Length()
	for _, part := range [][2]uint32{{0, n / 3}, {n / 3, n}} {
		if part[0] == part[1] {
			continue
		}
		h.write(h.h2c(q.CCCID(), q.TTAG(), off+part[0], send[off+part[0]:off+part[1]], part[1] == n))
	}
}

func (h *host) h2c(cid, tag uint16, off uint32, data []byte, last bool) []byte {
	var d Data
	var f Flags
	if last {
		f = FlagLast
	}
	d.Set(TypeH2CData, f, h.digests, cid, tag, off, uint32(len(data)), 0)
	return pdu(d[:], data)
}

// Reads and writes of every kind and many sizes, with every combination of digests
// and several alignments.
func TestTransfers(t *testing.T) {
	for _, d := range []Digests{0, DigestHeader, DigestData, DigestHeader | DigestData} {
		for _, pda := range []uint8{0, 1, 31} {
			for _, success := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %d success=%t", d, pda, success), func(t *testing.T) {
					mem := make([]byte, 2<<20)
					h, disk := start(t, Config{}, ICReq{Digests: d, HPDA: pda}, mem)
					disk.Set(queuetest.DiskOptions{NoSQHead: success})
					want := queuetest.Pattern(1<<20, 7)
					for i, n := range []int{2, 3, 512, 4096, 8192, 16 << 10, 16<<10 + 1, 100_001, 1 << 20} {
						at := i
						if n <= 16<<10 {
							h.write(h.command(nvme.OpWrite, at, want[:n], 0))
							if _, s := h.response(nil); s != nvme.Success || !bytes.Equal(mem[at:at+n], want[:n]) {
								t.Fatalf("%d bytes in the capsule: %v", n, s)
							}
							clear(mem)
						}
						h.write(h.command(nvme.OpWrite, at, nil, n))
						if _, s := h.response(want); s != nvme.Success || !bytes.Equal(mem[at:at+n], want[:n]) {
							t.Fatalf("%d bytes by R2T: %v", n, s)
						}
						h.write(h.command(nvme.OpRead, at, nil, n))
						if got, s := h.response(nil); s != nvme.Success || !bytes.Equal(got, want[:n]) {
							t.Fatalf("%d bytes read: %v", n, s)
						}
					}
					h.write(h.command(nvme.OpFlush, 0, nil, 0))
					if _, s := h.response(nil); s != nvme.Success {
						t.Fatal(s)
					}
					h.close(disk)
				})
			}
		}
	}
}

// A stream that comes in two parts, cut at every byte, is understood.
func TestSplitPoints(t *testing.T) {
	both := DigestHeader | DigestData
	mem := make([]byte, 4096)
	data := queuetest.Pattern(100, 7)
	h, disk := start(t, Config{}, ICReq{Digests: both}, mem)
	length := len(h.command(nvme.OpWrite, 0, data, 0))
	for cut := range length {
		b := h.command(nvme.OpWrite, 5, data, 0)
		h.apart(disk, b, cut)
		if _, s := h.response(nil); s != nvme.Success || !bytes.Equal(mem[5:105], data) {
			t.Fatalf("cut at %d: %v", cut, s)
		}
		clear(mem)
	}
	for cut := range len(h.h2c(1, 0, 0, data, true)) {
		h.write(h.command(nvme.OpWrite, 5, nil, len(data)))
		q, _ := h.next()
		b := h.h2c(h.cid, (*Data)(q).TTAG(), 0, data, true)
		h.apart(disk, b, cut)
		if _, s := h.response(nil); s != nvme.Success || !bytes.Equal(mem[5:105], data) {
			t.Fatalf("H2CData cut at %d: %v", cut, s)
		}
		clear(mem)
	}
	h.close(disk)
}

// apart sends b in two parts, the second when the controller has received the first.
func (h *host) apart(d *queuetest.Disk, b []byte, cut int) {
	h.t.Helper()
	c := d.C.(*Controller)
	before := c.Stats().ReceiveCalls
	h.write(b[:cut])
	for cut > 0 && c.Stats().ReceiveCalls == before {
		runtime.Gosched()
	}
	h.write(b[cut:])
}

// What a host does wrong ends the connection, after a TermReq that says what it
// was, and nothing else.
func TestBreaches(t *testing.T) {
	type step func(h *host) []byte
	write := func(h *host, n int) *Data {
		h.write(h.command(nvme.OpWrite, 0, nil, n))
		b, _ := h.next()
		return (*Data)(b)
	}
	flip := func(b []byte, at int, v byte) []byte { b[at] = v; return b }
	for _, tt := range []struct {
		name    string
		digests Digests
		step    step
		fes     FES
		fei     uint32
	}{
		{"ICReq twice", 0, func(h *host) []byte { return (&ICReq{}).AppendTo(nil) }, FESSequence, 0},
		{"unknown type", 0, func(h *host) []byte { return flip(h.command(nvme.OpFlush, 0, nil, 0), 0, 0x0B) }, FESInvalidHeader, 0},
		{"a response", 0, func(h *host) []byte { return flip(h.command(nvme.OpFlush, 0, nil, 0), 0, 5) }, FESInvalidHeader, 0},
		{"header length", 0, func(h *host) []byte { return flip(h.command(nvme.OpFlush, 0, nil, 0), 2, 71) }, FESInvalidHeader, 2},
		{"data offset", 0, func(h *host) []byte { return flip(h.command(nvme.OpWrite, 0, []byte("1234"), 0), 3, 73) }, FESInvalidHeader, 3},
		{"2 GiB", 0, func(h *host) []byte { return flip(h.command(nvme.OpWrite, 0, []byte("1234"), 0), 7, 0x80) }, FESDataLimit, 0},
		{"header digest", DigestHeader, func(h *host) []byte { return flip(h.command(nvme.OpFlush, 0, nil, 0), 40, 1) }, FESHeaderDigest, 0xFFFFFFFF},
		{"more in the capsule than allowed", 0, func(h *host) []byte { return h.command(nvme.OpWrite, 0, make([]byte, 16<<10+4), 0) }, FESDataLimit, 0},
		{"unasked data", 0, func(h *host) []byte { return h.h2c(1, 0, 0, []byte("1234"), true) }, FESInvalidHeader, AtTTAG},
		{"another tag", 0, func(h *host) []byte { q := write(h, 8); return h.h2c(q.CCCID(), q.TTAG()+1, 0, []byte("1234"), true) }, FESInvalidHeader, AtTTAG},
		{"another command", 0, func(h *host) []byte { q := write(h, 8); return h.h2c(q.CCCID()+1, q.TTAG(), 0, []byte("1234"), true) }, FESInvalidHeader, AtCCCID},
		{"another length", 0, func(h *host) []byte {
			q := write(h, 8)
			return flip(h.h2c(q.CCCID(), q.TTAG(), 0, []byte("1234"), false), AtLength, 5)
		}, FESInvalidHeader, AtLength},
		{"a gap", 0, func(h *host) []byte { q := write(h, 8); return h.h2c(q.CCCID(), q.TTAG(), 4, []byte("1234"), true) }, FESOutOfRange, 0},
		{"beyond the end", 0, func(h *host) []byte {
			q := write(h, 8)
			return h.h2c(q.CCCID(), q.TTAG(), 0, []byte("123456789"), true)
		}, FESOutOfRange, 0},
		{"data twice", 0, func(h *host) []byte {
			q := write(h, 8)
			h.write(h.h2c(q.CCCID(), q.TTAG(), 0, []byte("1234"), false))
			return h.h2c(q.CCCID(), q.TTAG(), 0, []byte("1234"), false)
		}, FESOutOfRange, 0},
		{"beyond the end, in parts", 0, func(h *host) []byte {
			q := write(h, 8)
			h.write(h.h2c(q.CCCID(), q.TTAG(), 0, []byte("1234"), false))
			return h.h2c(q.CCCID(), q.TTAG(), 4, []byte("12345"), false)
		}, FESOutOfRange, 0},
		{"last too early", 0, func(h *host) []byte { q := write(h, 8); return h.h2c(q.CCCID(), q.TTAG(), 0, []byte("1234"), true) }, FESInvalidHeader, 1},
		{"after the last", 0, func(h *host) []byte {
			q := write(h, 4)
			h.write(h.h2c(q.CCCID(), q.TTAG(), 0, []byte("1234"), true))
			h.next()
			return h.h2c(q.CCCID(), q.TTAG(), 4, []byte("1234"), true)
		}, FESInvalidHeader, AtTTAG},
		{"no data", 0, func(h *host) []byte { q := write(h, 8); return h.h2c(q.CCCID(), q.TTAG(), 0, nil, false) }, FESInvalidHeader, AtLength},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, disk := start(t, Config{}, ICReq{Digests: tt.digests}, make([]byte, 4096))
			bad := tt.step(h)
			h.write(bad)
			b, rest := h.next()
			if (*CH)(b).Type() != TypeC2HTermReq {
				t.Fatalf("%s: %x", (*CH)(b).Type(), b)
			}
			q, err := ParseTermReq(append(b, rest...))
			if err != nil || q.FES != tt.fes || q.FEI != tt.fei && tt.fei != 0xFFFFFFFF {
				t.Errorf("%s at %d, %v; want %s at %d", q.FES, q.FEI, err, tt.fes, tt.fei)
			}
			if n := min(len(q.Header), len(bad)); n < CHLen || !bytes.Equal(q.Header[:n], bad[:n]) {
				t.Errorf("the TermReq repeats %x of %x", q.Header, bad)
			}
			if n, err := io.Copy(io.Discard, h.nc); n != 0 || err != nil {
				t.Errorf("%d bytes behind the TermReq, %v", n, err)
			}
			h.nc.Close()
			var f *Fault
			if err := disk.Over(); !errors.As(err, &f) {
				t.Errorf("the connection ended with %v", err)
			}
		})
	}
}

// Nothing but ICReq may come first.
func TestFirstPDU(t *testing.T) {
	for name, tt := range map[string]struct {
		first []byte
		fes   FES
		fei   uint32
	}{
		"a command":      {append((&host{}).command(nvme.OpFlush, 0, nil, 0), make([]byte, 56)...), FESSequence, 0},
		"another format": {(&ICReq{PFV: 1}).AppendTo(nil), FESUnsupported, 8},
		"alignment":      {(&ICReq{HPDA: 32}).AppendTo(nil), FESInvalidHeader, 10},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := loopback.Pair(t)
			d := serve(t, server, Config{}, nil)
			h := &host{t: t, nc: client, limits: Limits{}}
			h.write(tt.first)
			b, rest := h.next()
			q, err := ParseTermReq(append(b, rest...))
			if err != nil || q.FES != tt.fes || q.FEI != tt.fei {
				t.Errorf("%+v, %v", q, err)
			}
			client.Close()
			d.Over()
			if n, _ := d.Commands(); n != 0 {
				t.Error("a command before ICReq was carried out")
			}
		})
	}
}

// More commands than the queue has entries, and as many for the answers on their way.
func TestTooManyCommands(t *testing.T) {
	h, disk := start(t, Config{}, ICReq{}, nil)
	held := make(chan *nvme.Command, 65)
	disk.Hold(func(k *nvme.Command) bool { held <- k; return true })
	for range 65 {
		h.write(h.command(nvme.OpFlush, 0, nil, 0))
	}
	b, rest := h.next()
	if q, err := ParseTermReq(append(b, rest...)); err != nil || q.FES != FESSequence {
		t.Errorf("%+v, %v", q, err)
	}
	h.nc.Close()
	disk.End()
	if len(held) != 64 {
		t.Errorf("%d commands came up", len(held))
	}
	for range 64 {
		disk.Respond(<-held, nvme.Success)
	}
	disk.C.Push()
	disk.Empty()
}

// A host may have seen the answers of a whole queue, and have filled it again, before the
// first of them has come to its end here.
func TestAnswersBeforeSent(t *testing.T) {
	h, disk := start(t, Config{}, ICReq{}, make([]byte, 4096))
	const depth = 32
	taken, goOn := make(chan *nvme.Command, depth), make(chan struct{})
	n := 0
	gate := make(chan struct{})
	disk.Set(queuetest.DiskOptions{Gate: gate, Hold: func(k *nvme.Command) bool {
		taken <- k
		if n++; n == depth {
			<-goOn // until somebody else transmits, so that the receiver does not wait in Sent
		}
		return true
	}})
	send := func(n int) (l []*nvme.Command) {
		t.Helper()
		for range n {
			h.write(h.command(nvme.OpFlush, 0, nil, 0))
		}
		for range n {
			select {
			case k := <-taken:
				l = append(l, k)
			case <-time.After(20 * time.Second):
				close(gate)
				t.Fatal("the queue is not taken to have room for more")
			}
		}
		return l
	}
	answer := func(l []*nvme.Command) {
		for _, k := range l {
			disk.Respond(k, nvme.Success)
		}
		go disk.C.Push()
	}
	answered := func(n int) {
		t.Helper()
		for range n {
			if b, _ := h.next(); (*CH)(b).Type() != TypeCapsuleResp {
				t.Fatalf("%x", b)
			}
		}
	}
	first := send(depth)
	answer(first[:depth-1]) // Push waits in Sent
	answered(depth - 1)
	close(goOn)
	again := send(depth - 1)
	close(gate)
	answer(append(again, first[depth-1]))
	answered(depth)
	h.close(disk)
}

// A wrong data digest fails the command and nothing else.
func TestDataDigest(t *testing.T) {
	mem := make([]byte, 4096)
	h, disk := start(t, Config{}, ICReq{Digests: DigestData}, mem)
	b := h.command(nvme.OpWrite, 0, []byte("1234"), 0)
	b[len(b)-1] ^= 1
	h.write(b)
	if _, s := h.response(nil); s != nvme.TransientTransport {
		t.Error(s)
	}
	h.write(h.command(nvme.OpWrite, 0, nil, 8))
	q, _ := h.next()
	d := (*Data)(q)
	b = h.h2c(d.CCCID(), d.TTAG(), 0, []byte("1234"), false)
	b[len(b)-1] ^= 1
	h.write(b)
	h.write(h.h2c(d.CCCID(), d.TTAG(), 4, []byte("5678"), true))
	if _, s := h.response(nil); s != nvme.TransientTransport {
		t.Error(s)
	}
	h.write(h.command(nvme.OpWrite, 0, []byte("1234"), 0))
	if _, s := h.response(nil); s != nvme.Success || string(mem[:4]) != "1234" {
		t.Error(s)
	}
	h.close(disk)
}

// What a host sends for a transfer that was cancelled before it was there is dropped.
func TestCancel(t *testing.T) {
	mem := make([]byte, 4096)
	h, disk := start(t, Config{}, ICReq{}, mem)
	use := make(chan uint64, 2)
	disk.Hold(func(k *nvme.Command) bool { use <- k.Use; return false })
	h.write(h.command(nvme.OpWrite, 0, nil, 8))
	b, _ := h.next()
	q := (*Data)(b)
	disk.C.Cancel(<-use)
	disk.C.Push()
	if _, s := h.response(nil); s != nvme.DataTransferError {
		t.Error(s)
	}
	h.write(h.h2c(q.CCCID(), q.TTAG(), 0, []byte("12345678"), true))
	h.write(h.command(nvme.OpWrite, 100, nil, 4))
	if _, s := h.response([]byte("abcd")); s != nvme.Success || string(mem[100:104]) != "abcd" {
		t.Error(s)
	}
	if !bytes.Equal(mem[:8], make([]byte, 8)) {
		t.Errorf("memory that was let go of has %q", mem[:8])
	}
	h.close(disk)
}

// The connection ends while the controller waits for data.
func TestLostInTransfer(t *testing.T) {
	for name, last := range map[string][]byte{"between PDUs": nil, "in a header": {6, 0}, "in the data": nil} {
		t.Run(name, func(t *testing.T) {
			h, disk := start(t, Config{}, ICReq{}, make([]byte, 4096))
			h.write(h.command(nvme.OpWrite, 0, nil, 8))
			b, _ := h.next()
			if name == "in the data" {
				last = h.h2c((*Data)(b).CCCID(), (*Data)(b).TTAG(), 0, []byte("12345678"), true)
				last = last[:len(last)-1]
			}
			h.write(last)
			h.nc.Close()
			if err := disk.Over(); (err == nil) != (name == "between PDUs") {
				t.Errorf("the connection ended with %v", err)
			}
		})
	}
}

// A host that says why it ends the connection is heard.
func TestHostTerminates(t *testing.T) {
	h, disk := start(t, Config{}, ICReq{}, nil)
	h.write((&TermReq{FES: FESDataLimit, Header: []byte("12345678")}).AppendTo(nil, TypeH2CTermReq))
	io.Copy(io.Discard, h.nc)
	h.nc.Close()
	if err := disk.Over(); err == nil || !bytes.Contains([]byte(err.Error()), []byte(FESDataLimit.String())) {
		t.Error(err)
	}
}

func FuzzController(f *testing.F) {
	h := &host{}
	f.Add(slices.Concat((&ICReq{}).AppendTo(nil), h.command(nvme.OpWrite, 0, []byte("1234"), 0), h.h2c(1, 0, 0, []byte("1234"), true)))
	f.Add(slices.Concat((&ICReq{}).AppendTo(nil), h.command(nvme.OpWrite, 0, nil, 8), h.h2c(2, 0, 0, []byte("12345678"), true), h.command(nvme.OpRead, 0, nil, 8)))
	f.Fuzz(func(t *testing.T, b []byte) {
		client, server := loopback.Pair(t)
		d := serve(t, server, Config{}, make([]byte, 1<<16))
		client.Write(b)
		client.CloseWrite()
		io.Copy(io.Discard, client)
		client.Close()
		d.Over()
	})
}

// A host that has its commands cancelled and never sends what they were asked for keeps tags
// taken: there is a bound to that.
func TestCancelledTagsAreBounded(t *testing.T) {
	h, disk := start(t, Config{}, ICReq{}, make([]byte, 4096))
	use := make(chan uint64, 2)
	disk.Hold(func(k *nvme.Command) bool { use <- k.Use; return false })
	for range 1024 {
		h.write(h.command(nvme.OpWrite, 0, nil, 8))
		if b, _ := h.next(); (*CH)(b).Type() != TypeR2T {
			t.Fatalf("%x", b)
		}
		disk.C.Cancel(<-use)
		disk.C.Push()
		if _, s := h.response(nil); s != nvme.DataTransferError {
			t.Fatal(s)
		}
	}
	h.write(h.command(nvme.OpWrite, 0, nil, 8))
	h.next()
	disk.C.Cancel(<-use)
	if err := disk.Over(); err == nil || !strings.Contains(err.Error(), "1025 cancelled transfers") {
		t.Errorf("the connection ended with %v", err)
	}
}

// What is answered while a connection closes is answered whole, or not at all: a host would take
// a success without data for what it has asked for.
func TestClosingAnswersWhole(t *testing.T) {
	mem := queuetest.Pattern(64<<20, 1) // the first answer: more than sockets hold
	h, disk := start(t, Config{}, ICReq{}, mem)
	held := make(chan *nvme.Command, 2)
	disk.Hold(func(k *nvme.Command) bool { held <- k; return true })
	h.write(h.command(nvme.OpRead, 0, nil, len(mem)))
	first := <-held
	h.write(h.command(nvme.OpRead, 512, nil, 512))
	second := <-held
	disk.Execute(first)
	disk.C.Terminate(nil)
	disk.Execute(second)
	go disk.C.Push()
	came, answered := map[uint16]int{}, map[uint16]bool{}
	for in := bufio.NewReader(h.nc); ; {
		b, err := in.Peek(DataLen) // and CapsuleRespLen
		if err == io.EOF && len(b) == 0 {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		plen := int((*CH)(b).PLen())
		switch (*CH)(b).Type() {
		case TypeC2HData:
			came[(*Data)(b).CCCID()] += int((*Data)(b).Length())
		case TypeCapsuleResp:
			answered[(*CapsuleResp)(b).CQE().CID()] = true
		}
		if _, err := in.Discard(plen); err != nil {
			t.Fatal(err)
		}
	}
	for cid, n := range map[uint16]int{1: len(mem), 2: 512} {
		if answered[cid] && came[cid] != n {
			t.Errorf("command %d has succeeded with %d bytes of %d", cid, came[cid], n)
		}
	}
	if !answered[1] {
		t.Error("what was queued before has not been sent")
	}
	h.close(disk)
}

// A response that says more than success does not ride in the last data: the host would not see it.
// A read that is aborted behind its data has such a one.
func TestResponseIsNotFolded(t *testing.T) {
	mem := queuetest.Pattern(512, 1)
	h, disk := start(t, Config{}, ICReq{}, mem)
	held := make(chan *nvme.Command, 1)
	disk.Hold(func(k *nvme.Command) bool { held <- k; return true })
	for name, change := range map[string]func(e *nvme.CQE){
		"an error":   func(e *nvme.CQE) { e.SetStatus(nvme.AbortRequested) },
		"a result":   func(e *nvme.CQE) { e.SetResult(7) },
		"an SQ head": func(e *nvme.CQE) { e.SetSQHead(3) },
	} {
		h.write(h.command(nvme.OpRead, 0, nil, len(mem)))
		k := <-held
		var e nvme.CQE
		e.SetCID(h.cid)
		e.SetSQHead(nvme.NoSQHead)
		change(&e)
		disk.C.PutData(k, 0, [][]byte{mem}, true)
		disk.C.Respond(k, &e)
		disk.C.Push()
		if b, data := h.next(); (*CH)(b).Type() != TypeC2HData || (*CH)(b).Flags() != FlagLast || !bytes.Equal(data, mem) {
			t.Fatalf("%s: %x", name, b)
		}
		if b, _ := h.next(); (*CH)(b).Type() != TypeCapsuleResp || *(*CapsuleResp)(b).CQE() != e {
			t.Errorf("%s: %x", name, b)
		}
	}
	h.close(disk)
}

// Nor does one whose data has begun to go: its flags are with the host.
func TestResponseIsTooLate(t *testing.T) {
	mem := queuetest.Pattern(64<<20, 1) // more than sockets hold
	h, disk := start(t, Config{}, ICReq{}, mem)
	held := make(chan *nvme.Command, 1)
	disk.Set(queuetest.DiskOptions{NoSQHead: true, Hold: func(k *nvme.Command) bool { held <- k; return true }})
	h.write(h.command(nvme.OpRead, 0, nil, len(mem)))
	k := <-held
	disk.C.PutData(k, 0, [][]byte{mem}, true)
	go disk.C.Push()
	got := make([]byte, DataLen)
	h.read(got)
	disk.Respond(k, nvme.Success)
	go disk.C.Push()
	if _, err := io.CopyN(io.Discard, h.nc, int64(len(mem))); err != nil {
		t.Fatal(err)
	}
	h.nc.SetReadDeadline(time.Now().Add(20 * time.Second))
	if (*CH)(got).Flags() != FlagLast {
		t.Errorf("flags %02x", (*CH)(got).Flags())
	}
	if b, _ := h.next(); (*CH)(b).Type() != TypeCapsuleResp {
		t.Errorf("%x", b)
	}
	h.close(disk)
}

// scarce is memory that there is at times.
type scarce struct {
	none atomic.Bool
	used atomic.Int64
}

func (m *scarce) Reserve(n int) bool {
	if m.none.Load() {
		return false
	}
	m.used.Add(int64(n))
	return true
}

func (m *scarce) Unreserve(n int) { m.used.Add(int64(-n)) }

// A command for whose data there is no memory is the only one that says so: the next one in its slot has room.
func TestNoRoomForData(t *testing.T) {
	mem, m := make([]byte, 4096), &scarce{}
	h, disk := start(t, Config{Memory: m}, ICReq{}, mem)
	m.none.Store(true)
	h.write(h.command(nvme.OpWrite, 0, []byte("1234"), 0))
	if _, s := h.response(nil); s != nvme.CommandInterrupted || mem[0] != 0 {
		t.Errorf("without memory: %v", s)
	}
	m.none.Store(false)
	for range 2 * queuetest.Entries { // every slot
		h.write(h.command(nvme.OpWrite, 0, []byte("1234"), 0))
		if _, s := h.response(nil); s != nvme.Success {
			t.Fatal(s)
		}
	}
	h.close(disk)
	if n := m.used.Load(); n != 0 {
		t.Errorf("%d bytes are not given back", n)
	}
}
