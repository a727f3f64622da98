package nbd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/internal/alloctest"
	"softiser/internal/await"
	"softiser/internal/spc"
)

func TestNegotiation(t *testing.T) {
	l := newMemLUN(t, 1<<20)
	_, path := serveLUN(t, l)
	c := dial(t, path)
	be := binary.BigEndian
	typ, p := c.option(optList, nil)
	if typ != repServer || string(p[4:4+be.Uint32(p)]) != "vol" || string(p[7:]) != "a test" {
		t.Errorf("LIST: %#x %q", typ, p)
	}
	if typ, _ = c.optionReply(optList); typ != repAck {
		t.Errorf("LIST end: %#x", typ)
	}
	for _, tc := range []struct {
		opt  uint32
		data []byte
		want uint32
	}{
		{optList, []byte("x"), repErrInvalid},
		{optStartTLS, nil, repErrPolicy},
		{4, nil, repErrUnsup},
		{11, nil, repErrUnsup},
		{9999, []byte("whatever"), repErrUnsup},
		{optGo, goData("nope"), repErrUnknown},
		{optInfo, goData("nope"), repErrUnknown},
		{optGo, []byte{0, 0}, repErrInvalid},
		{optGo, []byte{0xff, 0xff, 0xff, 0xff, 0, 0}, repErrInvalid},
		{optGo, append(goData("vol"), 1), repErrInvalid},
		{optGo, goData(strings.Repeat("x", 5000)), repErrTooBig},
		{optStructuredReply, []byte{1}, repErrInvalid},
		{optSetMeta, metaQuery("vol", contextAllocation), repErrInvalid}, // before structured replies
		{optStructuredReply, nil, repAck},
		{optSetMeta, metaQuery("nope", contextAllocation), repErrUnknown},
		{optSetMeta, []byte{0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}, repErrInvalid},
		{optSetMeta, append(metaQuery("vol", "base:allocation"), 7), repErrInvalid},
		{optSetMeta, metaQuery("vol", "qemu:dirty-bitmap:x"), repAck}, // nothing selected
	} {
		if typ, p := c.option(tc.opt, tc.data); typ != tc.want {
			t.Errorf("option %d % x: %#x %q, want %#x", tc.opt, tc.data[:min(len(tc.data), 20)], typ, p, tc.want)
		}
	}
	if typ, p = c.option(optListMeta, metaQuery("vol")); typ != repMetaContext || string(p[4:]) != contextAllocation {
		t.Errorf("LIST_META: %#x %q", typ, p)
	}
	c.optionReply(optListMeta)

	// INFO leaves the negotiation open; then GO.
	typ, p = c.option(optInfo, goData("vol", infoBlockSize, infoName, infoDescription, 77))
	seen := map[uint16][]byte{}
	for ; typ == repInfo; typ, p = c.optionReply(optInfo) {
		seen[be.Uint16(p)] = p[2:]
	}
	if typ != repAck || string(seen[infoName]) != "vol" || string(seen[infoDescription]) != "a test" {
		t.Errorf("INFO: %#x %v", typ, seen)
	}
	if b := seen[infoBlockSize]; be.Uint32(b) != 512 || be.Uint32(b[4:]) != 4096 || be.Uint32(b[8:]) != maxPayload {
		t.Errorf("block sizes % x", b)
	}
	c.goExport("") // the default export
	want := FlagHasFlags | FlagSendFlush | FlagSendFUA | FlagSendTrim | FlagSendWriteZeroes | FlagSendFastZero | FlagCanMultiConn | FlagSendDF
	if c.size != 1<<20 || c.flags != want {
		t.Errorf("size %d, flags %#x, want %#x", c.size, c.flags, want)
	}
}

func TestExportName(t *testing.T) {
	l := newMemLUN(t, 1<<20)
	_, path := serveLUN(t, l)
	c := dial(t, path)
	c.write(optionBytes(optExportName, []byte("vol")))
	p := c.read(10) // NO_ZEROES was agreed
	if binary.BigEndian.Uint64(p) != 1<<20 || TransmissionFlags(binary.BigEndian.Uint16(p[8:]))&FlagSendDF != 0 {
		t.Errorf("% x", p)
	}
	if r := c.do(0, CmdRead, 0, 512, nil); r.errno != 0 || len(r.data) != 512 {
		t.Errorf("%+v", r)
	}
	c = dial(t, path)
	c.write(optionBytes(optExportName, []byte("nope")))
	if err := c.gone(); err != nil {
		t.Error(err)
	}
	c = dial(t, path)
	if typ, _ := c.option(optAbort, nil); typ != repAck {
		t.Errorf("ABORT: %#x", typ)
	}
	if err := c.gone(); err != nil {
		t.Error(err)
	}
}

func TestCommands(t *testing.T) {
	for _, structured := range []bool{false, true} {
		l := newMemLUN(t, 4<<20)
		_, path := serveLUN(t, l)
		var c *client
		if structured {
			c = connect(t, path, "vol")
		} else {
			c = dial(t, path)
			c.goExport("vol")
		}
		for _, n := range []uint32{512, 4096, 31 << 10, 32 << 10, 1 << 20, 3 << 20} {
			data := make([]byte, n)
			rand.NewChaCha8([32]byte{byte(n)}).Read(data)
			off := uint64(512)
			if r := c.do(0, CmdWrite, off, n, data); r.errno != 0 {
				t.Fatalf("write of %d: %+v", n, r)
			}
			if r := c.do(0, CmdRead, off, n, nil); r.errno != 0 || !bytes.Equal(r.data, data) {
				t.Fatalf("read of %d: error %d, %d bytes", n, r.errno, len(r.data))
			}
		}
		if r := c.do(cmdFUA, CmdWrite, 0, 512, make([]byte, 512)); r.errno != 0 || l.fua.Load() != 1 {
			t.Errorf("FUA: %+v, %d", r, l.fua.Load())
		}
		if r := c.do(0, CmdFlush, 0, 0, nil); r.errno != 0 || l.flush.Load() != 1 {
			t.Errorf("flush: %+v, %d", r, l.flush.Load())
		}
		for i, cmd := range []Command{CmdTrim, CmdWriteZeroes} {
			l.mu.Lock()
			copy(l.data[8192:], bytes.Repeat([]byte{7}, 8192))
			l.mu.Unlock()
			if r := c.do(cmdFUA, cmd, 8192, 4096, nil); r.errno != 0 || l.content()[8192] != 0 || l.content()[12288] != 7 {
				t.Errorf("%v: %+v", cmd, r)
			}
			// Durable is the session's affair: it flushes where the command has no FUA bit.
			if n := l.fua.Load(); n != int64(2+i) || l.flush.Load() != 1 {
				t.Errorf("%v with FUA: %d with FUA, %d flushes", cmd, n, l.flush.Load())
			}
		}
		if r := c.do(cmdNoHole|cmdFastZero, CmdWriteZeroes, 0, 1<<20, nil); r.errno != 0 {
			t.Errorf("write zeroes: %+v", r)
		}
		c.send(0, CmdDisc, 1, 0, 0, nil)
		if err := c.gone(); err != nil {
			t.Error(err)
		}
	}
}

func TestBlockStatus(t *testing.T) {
	l := newMemLUN(t, 1<<20)
	l.data[300_000] = 1
	_, path := serveLUN(t, l)
	c := connect(t, path, "vol")
	r := c.do(0, CmdBlockStatus, 0, 1<<20, nil)
	var got []uint32
	for p := r.data; len(p) > 0; p = p[4:] {
		got = append(got, binary.BigEndian.Uint32(p))
	}
	want := []uint32{262144, 3, 65536, 0, 720896, 3}
	if r.errno != 0 || len(got) != len(want) {
		t.Fatalf("%+v: %d", r, got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("extent value %d is %d, want %d", i, got[i], want[i])
		}
	}
	if r := c.do(cmdReqOne, CmdBlockStatus, 0, 1<<20, nil); len(r.data) != 8 {
		t.Errorf("one extent: % x", r.data)
	}
	// Clients may set FUA on any command.
	if r := c.do(cmdFUA|cmdReqOne, CmdBlockStatus, 0, 1<<20, nil); r.errno != 0 {
		t.Errorf("with FUA: %+v", r)
	}
	plain := dial(t, path)
	plain.goExport("vol")
	if r := plain.do(0, CmdBlockStatus, 0, 4096, nil); r.errno != errInval {
		t.Errorf("without a context: %+v", r)
	}
}

func TestRefusedRequests(t *testing.T) {
	l := newMemLUN(t, 1<<20)
	_, path := serveUnix(t, Config{Exports: []*Export{{Name: "vol", LUN: l}, {Name: "ro", ReadOnly: true, LUN: l}}})
	for _, tc := range []struct {
		export string
		flags  uint16
		cmd    Command
		off    uint64
		n      uint32
		want   uint32
	}{
		{"vol", 0, CmdRead, 1 << 20, 512, errInval},
		{"vol", 0, CmdRead, 1<<64 - 512, 1024, errInval},
		{"vol", 0, CmdRead, 100, 512, errInval},
		{"vol", 0, CmdRead, 0, 100, errInval},
		{"vol", 0, CmdRead, 0, maxPayload + 512, errInval},
		{"vol", 0, CmdRead, 0, 1<<32 - 512, errInval},
		{"vol", cmdDF, CmdRead, 0, maxPayload + 512, errOverflow},
		{"vol", 0, CmdTrim, 0, 1<<32 - 512, errInval},
		{"vol", 0, CmdWriteZeroes, 0, 1<<32 - 512, errNoSpace},
		{"vol", 0, CmdBlockStatus, 0, 1<<32 - 512, errInval},
		{"vol", 0, CmdWrite, 1<<20 - 512, 1024, errNoSpace},
		{"vol", 0, CmdWrite, 1<<64 - 512, 1024, errNoSpace},
		{"vol", cmdNoHole, CmdWrite, 0, 512, errInval},
		{"vol", 1 << 9, CmdRead, 0, 512, errInval},
		{"vol", 0, CmdCache, 0, 512, errInval},
		{"vol", 0, Command(99), 0, 512, errInval},
		{"vol", 0, CmdTrim, 0, 1 << 21, errInval},
		{"vol", 0, CmdBlockStatus, 0, 0, errInval},
		{"ro", 0, CmdWrite, 0, 512, errPerm},
		{"ro", 0, CmdTrim, 0, 512, errPerm},
		{"ro", 0, CmdWriteZeroes, 0, 512, errPerm},
	} {
		c := connect(t, path, tc.export)
		var payload []byte
		if tc.cmd == CmdWrite {
			payload = make([]byte, tc.n)
		}
		if r := c.do(tc.flags, tc.cmd, tc.off, tc.n, payload); r.errno != tc.want || r.msg == "" {
			t.Errorf("%s %v %d+%d: error %d %q, want %d", tc.export, tc.cmd, tc.off, tc.n, r.errno, r.msg, tc.want)
		}
		// The stream is still in step.
		if r := c.do(0, CmdRead, 0, 512, nil); r.errno != 0 {
			t.Errorf("%v: the next request fails: %+v", tc.cmd, r)
		}
	}
}

func TestErrorNumbers(t *testing.T) {
	sense := func(k spc.Key, a spc.ASC) error {
		return &spc.SenseError{Status: spc.StatusCheckCondition, Sense: spc.Sense{Key: k, ASC: a}}
	}
	for _, tc := range []struct {
		err  error
		want uint32
	}{
		{nil, 0},
		{sense(spc.KeyMedium, 0x1100), errIO},
		{sense(spc.KeyDataProtect, spc.ASCSpaceAllocFailed), errNoSpace},
		{sense(spc.KeyDataProtect, spc.ASCWriteProtected), errPerm},
		{sense(spc.KeyIllegalRequest, spc.ASCLBAOutOfRange), errInval},
		{sense(spc.KeyIllegalRequest, 0x2000), errNotSup},
		{&spc.SenseError{Status: spc.StatusReservationConflict}, errPerm},
		{&spc.SenseError{Status: spc.StatusBusy}, errIO},
		{blockdev.ErrReadOnly, errPerm},
		{blockdev.ErrNoSpace, errNoSpace},
		{blockdev.ErrOutOfRange, errInval},
		{blockdev.ErrNotSupported, errNotSup},
		{blockio.ErrSessionLost, errIO},
		{blockio.ErrTimeout, errIO},
		{blockio.ErrCacheLost, errIO},
		{blockio.ErrClosed, errShutdown},
		{blockio.ErrReservation, errPerm},
		{errors.New("anything"), errIO},
	} {
		if got := errnoOf(tc.err); got != tc.want {
			t.Errorf("%v: %d, want %d", tc.err, got, tc.want)
		}
	}
	l := newMemLUN(t, 1<<20)
	l.hook = func(r *blockio.Request) error { return sense(spc.KeyDataProtect, spc.ASCSpaceAllocFailed) }
	_, path := serveLUN(t, l)
	c := connect(t, path, "vol")
	if r := c.do(0, CmdWrite, 0, 512, make([]byte, 512)); r.errno != errNoSpace || !strings.Contains(r.msg, "space allocation failed") {
		t.Errorf("%+v", r)
	}
}

// Write zeroes is repeated when the target turns WRITE SAME down.
func TestWriteZeroesFallsBack(t *testing.T) {
	l := newMemLUN(t, 1<<20)
	var calls atomic.Int32
	l.hook = func(r *blockio.Request) error {
		if calls.Add(1) == 1 {
			return blockdev.ErrNotSupported
		}
		return nil
	}
	_, path := serveLUN(t, l)
	c := connect(t, path, "vol")
	if r := c.do(0, CmdWriteZeroes, 0, 4096, nil); r.errno != 0 || calls.Load() != 2 {
		t.Errorf("%+v after %d calls", r, calls.Load())
	}
}

// Fast zeroes are not written: the client would rather do something else.
func TestFastZeroIsFastOrNot(t *testing.T) {
	l := newMemLUN(t, 1<<20)
	var calls atomic.Int32
	l.hook = func(r *blockio.Request) error {
		if calls.Add(1); !r.NoData {
			t.Error("this one may write")
		}
		return blockdev.ErrNotSupported
	}
	_, path := serveLUN(t, l)
	c := connect(t, path, "vol")
	if r := c.do(cmdFastZero, CmdWriteZeroes, 0, 4096, nil); r.errno != errNotSup || calls.Load() != 1 {
		t.Errorf("%+v after %d calls", r, calls.Load())
	}
}

// A trim covers the blocks that lie in it whole: older qemu trims as its guest
// says, whatever the block size, and takes EINVAL for an error.
func TestTrimIsRoundedInwards(t *testing.T) {
	l := newMemLUN(t, 64<<10)
	l.info.BlockSize = 4096
	_, path := serveLUN(t, l)
	c := connect(t, path, "vol")
	for _, tc := range []struct{ off, n, from, to int }{
		{4096, 8192, 4096, 12288}, {5000, 10000, 8192, 12288}, {5000, 100, 0, 0}, {4097, 4096, 0, 0}, {0, 4095, 0, 0}, {65535, 1, 0, 0}, {0, 0, 0, 0},
		{4095, 4097, 4096, 8192},
	} {
		l.mu.Lock()
		copy(l.data, bytes.Repeat([]byte{7}, len(l.data)))
		l.mu.Unlock()
		want := l.content()
		clear(want[tc.from:tc.to])
		if r := c.do(cmdFUA, CmdTrim, uint64(tc.off), uint32(tc.n), nil); r.errno != 0 || !bytes.Equal(l.content(), want) {
			t.Errorf("trim of %d+%d: %+v", tc.off, tc.n, r)
		}
	}
	if r := c.do(0, CmdTrim, 64<<10, 1, nil); r.errno != errInval {
		t.Errorf("beyond the end: %+v", r)
	}
}

// A context that was chosen for the default export counts for the export that
// this is.
func TestContextOfTheDefaultExport(t *testing.T) {
	_, path := serveLUN(t, newMemLUN(t, 1<<20))
	for _, names := range [][2]string{{"", "vol"}, {"vol", ""}, {"", ""}} {
		c := dial(t, path)
		if typ, _ := c.option(optStructuredReply, nil); typ != repAck {
			t.Fatal(typ)
		}
		c.structured = true
		if typ, _ := c.option(optSetMeta, metaQuery(names[0], contextAllocation)); typ != repMetaContext {
			t.Fatal(typ)
		}
		if typ, _ := c.optionReply(optSetMeta); typ != repAck {
			t.Fatal(typ)
		}
		c.goExport(names[1])
		if r := c.do(0, CmdBlockStatus, 0, 4096, nil); r.errno != 0 {
			t.Errorf("%q: %+v", names, r)
		}
	}
}

// A choice of contexts takes the place of the one before, even when it fails.
func TestChoiceOfContextsFails(t *testing.T) {
	_, path := serveLUN(t, newMemLUN(t, 1<<20))
	for _, bad := range [][]byte{metaQuery("nope", contextAllocation), append(metaQuery("vol", contextAllocation), 7), {0}} {
		c := dial(t, path)
		if typ, _ := c.option(optStructuredReply, nil); typ != repAck {
			t.Fatal(typ)
		}
		c.structured = true
		if typ, _ := c.option(optSetMeta, metaQuery("vol", contextAllocation)); typ != repMetaContext {
			t.Fatal(typ)
		}
		if typ, _ := c.optionReply(optSetMeta); typ != repAck {
			t.Fatal(typ)
		}
		if typ, _ := c.option(optSetMeta, bad); typ&(1<<31) == 0 {
			t.Fatal(typ)
		}
		c.goExport("vol")
		if r := c.do(0, CmdBlockStatus, 0, 4096, nil); r.errno != errInval {
			t.Errorf("% x: %+v", bad, r)
		}
	}
}

// Many requests in flight, on several connections, in any order: every reply
// belongs to its request and carries its data.
func TestConcurrentRequests(t *testing.T) {
	l := newMemLUN(t, 16<<20)
	_, path := serveUnix(t, Config{Exports: []*Export{{Name: "vol", LUN: l}}, Depth: 16, Memory: maxPayload})
	for i := range len(l.data) / 4096 {
		binary.BigEndian.PutUint64(l.data[i*4096:], uint64(i))
	}
	var wg sync.WaitGroup
	for k := range 4 {
		c := connect(t, path, "vol")
		wg.Go(func() {
			const n = 500
			rng := rand.New(rand.NewPCG(uint64(k), 1))
			go func() {
				var p []byte
				for range n {
					blk := rng.Uint64N(4000)
					size := uint32(4096) << rng.Uint64N(6)
					p = append(p, requestBytes(0, CmdRead, blk<<32|uint64(size), blk*4096, size)...)
				}
				c.nc.Write(p)
			}()
			for range n {
				h := c.read(20)
				cookie := binary.BigEndian.Uint64(h[8:])
				p := c.read(int(binary.BigEndian.Uint32(h[16:])))
				blk, size := cookie>>32, cookie&0xffffffff
				if uint64(len(p)) != 8+size || binary.BigEndian.Uint64(p) != blk*4096 {
					t.Errorf("reply of %d bytes for block %d, %d bytes", len(p), blk, size)
					return
				}
				for i := range size / 4096 {
					if got := binary.BigEndian.Uint64(p[8+i*4096:]); got != blk+i {
						t.Errorf("block %d holds %d", blk+i, got)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

// A client that does not read replies stops being read, and memory stays
// bounded; others go on.
func TestSlowClientIsBounded(t *testing.T) {
	l := newMemLUN(t, 16<<20)
	s, path := serveUnix(t, Config{Exports: []*Export{{Name: "vol", LUN: l}}, Memory: maxPayload})
	c := connect(t, path, "vol")
	go func() {
		p := requestBytes(0, CmdRead, 1, 0, 1<<20)
		for range 1000 {
			if _, err := c.nc.Write(p); err != nil {
				return
			}
		}
	}()
	other := connect(t, path, "vol")
	for range 100 {
		if r := other.do(0, CmdRead, 0, 65536, nil); r.errno != 0 {
			t.Fatal(r)
		}
	}
	s.mu.Lock()
	for c := range s.conns {
		c.mu.Lock()
		if c.pool.held > maxPayload {
			t.Errorf("%d bytes of buffers", c.pool.held)
		}
		c.mu.Unlock()
	}
	s.mu.Unlock()
	c.nc.Close()
}

func TestShutdownFinishesRequests(t *testing.T) {
	l := newMemLUN(t, 1<<20)
	release := make(chan struct{})
	arrived := make(chan struct{}, 8)
	l.hook = func(r *blockio.Request) error { arrived <- struct{}{}; <-release; return nil }
	srv, path := serveLUN(t, l)
	c := connect(t, path, "vol")
	idle := connect(t, path, "vol")
	c.send(0, CmdRead, 7, 0, 4096, nil)
	<-arrived
	done := make(chan error, 1)
	go func() { done <- srv.Shutdown(context.Background()) }()
	if err := idle.gone(); err != nil {
		t.Error(err)
	}
	close(release)
	if r := c.recv(4096); r.cookie != 7 || r.errno != 0 {
		t.Errorf("%+v", r)
	}
	if err := c.gone(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestTooManyConnections(t *testing.T) {
	l := newMemLUN(t, 1<<20)
	_, path := serveUnix(t, Config{Exports: []*Export{{Name: "vol", LUN: l}}, MaxConns: 1})
	c := connect(t, path, "vol")
	d := &client{t: t, nc: dialRaw(t, path)}
	if err := d.gone(); err != nil {
		t.Error(err)
	}
	if r := c.do(0, CmdRead, 0, 512, nil); r.errno != 0 {
		t.Error(r)
	}
}

func TestNewServerRefuses(t *testing.T) {
	l := &memLUN{}
	for _, cfg := range []Config{
		{},
		{Exports: []*Export{{LUN: l}}, Depth: -1},
		{Exports: []*Export{{Name: "a", LUN: l}, {Name: "a", LUN: l}}},
		{Exports: []*Export{{Name: strings.Repeat("x", 5000), LUN: l}}},
	} {
		if _, err := NewServer(cfg); err == nil {
			t.Errorf("%+v accepted", cfg)
		}
	}
}

// Nothing is allocated for a request in the steady state.
func TestNoAllocationPerRequest(t *testing.T) {
	if testing.Short() {
		t.Skip("needs many requests")
	}
	l := &inlineLUN{newMemLUN(t, 1<<20)}
	_, path := serveUnix(t, Config{Exports: []*Export{{Name: "vol", LUN: l}}})
	c := dial(t, path)
	c.goExport("vol")
	req := bytes.Repeat(requestBytes(0, CmdRead, 1, 4096, 4096), 32)
	resp := make([]byte, 32*(16+4096))
	round := func() {
		c.nc.Write(req)
		for n := 0; n < len(resp); {
			k, err := c.nc.Read(resp[n:])
			if err != nil {
				t.Error(err)
				return
			}
			n += k
		}
	}
	for range 10 {
		round()
	}
	if a := alloctest.PerRun(200, round); a/32 > 0.05 {
		t.Errorf("%.2f allocations per request", a/32)
	}
}

// inlineLUN completes inside SubmitBatch.
type inlineLUN struct{ *memLUN }

func (l *inlineLUN) SubmitBatch(rs []*blockio.Request) {
	for _, r := range rs {
		l.do(r)
		r.Done(r)
	}
}

// A client that says nothing is hung up on.
func TestHandshakeTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := NewServer(Config{Exports: []*Export{{LUN: &memLUN{}}}})
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := net.Pipe()
		defer theirs.Close()
		go io.Copy(io.Discard, theirs)
		began := time.Now()
		if err := s.serve(ours); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if d := time.Since(began); d != handshakeTimeout {
			t.Errorf("after %v", d)
		}
	})
}

// A volume that grows is served to its new end on connections that are there: the
// kernel learns its size and asks for it.
func TestGrownVolume(t *testing.T) {
	l := newMemLUN(t, 1<<20)
	e := &Export{LUN: l}
	c := &conn{exp: e, agreed: agreed{export: e}, block: 512}
	in := request{cmd: CmdWrite, off: 1 << 20, n: 4096}
	if errno := c.check(&in); errno != errNoSpace {
		t.Errorf("a write beyond the end: %d", errno)
	}
	l.info.Size = 2 << 20
	if errno := c.check(&in); errno != 0 {
		t.Errorf("a write to what has grown: %d", errno)
	}
}

// A connection is not over while a part of a reply waits for room in the socket.
func TestDrainWaitsForTheSocket(t *testing.T) {
	c := &conn{room: make(chan struct{}, 1)}
	c.out.tx.iov = c.out.tx.store[:0]
	c.out.tx.append([]byte("a rest"))
	over := make(chan struct{})
	go func() { c.drain(); close(over) }()
	await.True(t, "it waits", func() bool {
		select {
		case <-over:
			t.Fatal("drained with a reply in the vector")
		default:
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.waiting
	})
	c.mu.Lock()
	c.out.tx.abandon()
	c.wakeLocked()
	c.mu.Unlock()
	<-over
}

// TestFlushesAreTheClients: each client is told of a lost cache himself, and what it has written counts as its; the kernel is one
// client, whatever number of connections it has.
func TestFlushesAreTheClients(t *testing.T) {
	l := newMemLUN(t, 1<<20)
	var mu sync.Mutex
	var flushes []*blockio.Flusher
	l.hook = func(r *blockio.Request) error {
		mu.Lock()
		defer mu.Unlock()
		if r.Op == blockio.OpFlush {
			flushes = append(flushes, r.Flusher)
		} else if r.Flusher == nil {
			t.Errorf("operation %d is nobody's", r.Op)
		}
		return nil
	}
	taken := func() []*blockio.Flusher {
		mu.Lock()
		defer mu.Unlock()
		f := flushes
		flushes = nil
		return f
	}
	s, path := serveLUN(t, l)
	one, another := connect(t, path, "vol"), connect(t, path, "vol")
	for _, c := range []*client{one, another, one} {
		for range 2 {
			if r := c.do(0, CmdFlush, 0, 0, nil); r.errno != 0 {
				t.Fatalf("flush: %d", r.errno)
			}
			if r := c.do(0, CmdWrite, 0, 512, make([]byte, 512)); r.errno != 0 {
				t.Fatalf("write: %d", r.errno)
			}
		}
	}
	got := taken()
	a, b := got[0], got[2]
	if a == nil || b == nil || a == b {
		t.Errorf("two clients: %p and %p", a, b)
	}
	if want := []*blockio.Flusher{a, a, b, b, a, a}; !slices.Equal(got, want) {
		t.Errorf("flushes of %p, want %p", got, want)
	}

	kernel := l.NewFlusher()
	for range 2 {
		ours, theirs := socketPair(t)
		done := make(chan error, 1)
		go func() { done <- s.ServeKernel(theirs, s.exports[0], kernel) }()
		c := &client{t: t, nc: ours}
		if r := c.do(0, CmdFlush, 0, 0, nil); r.errno != 0 {
			t.Fatalf("flush: %d", r.errno)
		}
		ours.Close()
		<-done
	}
	if got, want := taken(), []*blockio.Flusher{kernel, kernel}; !slices.Equal(got, want) {
		t.Errorf("flushes of %p, want %p", got, want)
	}
}

// cacheLUN keeps account of a cache of its target's.
type cacheLUN struct {
	*memLUN
	account blockio.Cache
}

func (l *cacheLUN) NewFlusher() *blockio.Flusher { return l.account.NewFlusher() }

// A client whose connection ends before a loss is told of it over the next one, although somebody
// else has been told meanwhile; the kernel's connections are those of one client, which has not
// gone while there is one.
func TestClientThatComesAgain(t *testing.T) {
	for _, kernel := range []bool{false, true} {
		l := &cacheLUN{memLUN: newMemLUN(t, 1<<20)}
		var epoch atomic.Pointer[blockio.Epoch]
		epoch.Store(l.account.Enter([16]byte{1}))
		l.hook = func(r *blockio.Request) error {
			switch r.Op {
			case blockio.OpWrite:
				epoch.Load().Wrote(r.Flusher)
			case blockio.OpFlush:
				b := epoch.Load().Begin(r.Flusher)
				return b.End(true)
			}
			return nil
		}
		s, path := serveUnix(t, Config{Exports: []*Export{{Name: "vol", LUN: l}}})
		flush := func(c *client) uint32 { return c.do(0, CmdFlush, 0, 0, nil).errno }
		var first, second *client
		if kernel {
			user := l.NewFlusher()
			for _, c := range []**client{&first, &second} {
				ours, theirs := socketPair(t)
				done := make(chan error, 1)
				go func() { done <- s.ServeKernel(theirs, s.exports[0], user) }()
				t.Cleanup(func() { ours.Close(); <-done })
				*c = &client{t: t, nc: ours}
				(*c).do(0, CmdRead, 0, 512, nil) // it is served
			}
		} else {
			first = connect(t, path, "vol")
		}
		other := connect(t, path, "vol")
		if r := first.do(0, CmdWrite, 0, 512, make([]byte, 512)); r.errno != 0 {
			t.Fatalf("write: %d", r.errno)
		}
		other.do(0, CmdRead, 0, 512, nil) // so it is in the list, which an answered handshake does not say
		left := len(s.connList()) - 1
		first.nc.Close()
		await.True(t, "the connection has ended", func() bool { return len(s.connList()) == left })
		now, lost := epoch.Load().Look([16]byte{2})
		if epoch.Store(now); !lost {
			t.Fatal("nothing was lost")
		}
		if errno := flush(other); errno != errIO {
			t.Errorf("kernel %v: the other client's flush: %d", kernel, errno)
		}
		if !kernel {
			second = connect(t, path, "vol")
		}
		for i, want := range []uint32{errIO, 0} {
			if errno := flush(second); errno != want {
				t.Errorf("kernel %v: flush %d over the second connection: %d", kernel, i, errno)
			}
		}
		if errno := flush(connect(t, path, "vol")); errno != 0 {
			t.Errorf("kernel %v: the flush of who comes later: %d", kernel, errno)
		}
	}
}

// failingListener is out of descriptors for a while, and then nobody comes until it is closed.
type failingListener struct {
	net.Listener
	fails  atomic.Int32
	tried  chan struct{}
	closed chan struct{}
	close  sync.Once
}

func (l *failingListener) Accept() (net.Conn, error) {
	if l.fails.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	close(l.tried)
	<-l.closed
	return nil, net.ErrClosed
}

func (l *failingListener) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}

// A server that is short of descriptors for a while goes on serving, and says so once.
func TestAcceptFails(t *testing.T) {
	for _, shutdown := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var told []error
			s, err := NewServer(Config{Exports: []*Export{{Name: "vol", LUN: newMemLUN(t, 1<<20)}}, OnError: func(err error) { told = append(told, err) }})
			if err != nil {
				t.Fatal(err)
			}
			l := &failingListener{tried: make(chan struct{}), closed: make(chan struct{})}
			l.fails.Store(5)
			done := make(chan error, 1)
			go func() { done <- s.Serve(l) }()
			select {
			case <-l.tried:
			case err := <-done:
				t.Fatal(err)
			}
			want := net.ErrClosed
			if shutdown {
				want = ErrServerClosed
				if err := s.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			}
			l.Close()
			if err := <-done; !errors.Is(err, want) {
				t.Error(err)
			}
			if len(told) != 1 || !errors.Is(told[0], syscall.EMFILE) {
				t.Errorf("told %v", told)
			}
		})
	}
}
