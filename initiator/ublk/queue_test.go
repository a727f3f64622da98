package ublk

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/internal/uring"
)

// command is what a queue has given to the driver.
type command struct {
	op    uint64
	queue uint16
	tag   uint16
	res   int32
	addr  uint64
}

// driver is the kernel's side of a queue: a ring whose commands it keeps and whose
// completions the test makes.
type driver struct {
	t    *testing.T
	q    *queue
	desc []byte
	memo []byte

	entries []uring.Entry // since the last Enter
	enter   error         // what the next Enter fails with
	refuse  map[uint16]int32

	mu   sync.Mutex
	cond *sync.Cond
	out  []uring.Completion
	held map[uint16]command // tags that the driver has
	got  []command          // commits, in order
	arms int                // reads of the wake counter

	readers sync.WaitGroup
}

func (d *driver) Next() *uring.Entry {
	d.entries = slices.Grow(d.entries, 1)[:len(d.entries)+1]
	e := &d.entries[len(d.entries)-1]
	*e = uring.Entry{}
	return e
}

func (d *driver) Enter(wait int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.enter != nil {
		return d.enter
	}
	for _, e := range d.entries {
		if e.UserData == wakeTag {
			d.arms++
			if d.arms > 1 {
				continue // the first reader waits on
			}
			d.readers.Go(d.readCounter)
			continue
		}
		c := command{e.CmdOp, host.Uint16(e.Cmd[0:]), host.Uint16(e.Cmd[2:]), int32(host.Uint32(e.Cmd[4:])), host.Uint64(e.Cmd[8:])}
		if res, ok := d.refuse[c.tag]; ok {
			d.out = append(d.out, uring.Completion{UserData: uint64(c.tag), Res: res})
			continue
		}
		if _, twice := d.held[c.tag]; twice || uint64(c.tag) != e.UserData {
			d.t.Errorf("tag %d is given twice, or as %d", c.tag, e.UserData)
		}
		d.held[c.tag] = c
		if c.op == uint64(d.q.fetC) {
			d.got = append(d.got, c)
		}
	}
	d.entries = d.entries[:0]
	d.cond.Broadcast()
	for wait > 0 && len(d.out) == 0 {
		d.cond.Wait()
	}
	return nil
}

// readCounter reads the wake counter, again and again, until it holds stopCount.
func (d *driver) readCounter() {
	b := make([]byte, 8)
	for {
		if _, err := unix.Read(int(d.q.wake.fd), b); err != nil {
			return
		}
		if host.Uint64(b) >= stopCount {
			return
		}
		d.mu.Lock()
		d.out = append(d.out, uring.Completion{UserData: wakeTag, Res: 8})
		d.cond.Broadcast()
		d.mu.Unlock()
	}
}

const stopCount = 1 << 40

func (d *driver) Take(dst []uring.Completion) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := copy(dst, d.out)
	d.out = append(d.out[:0], d.out[n:]...)
	return n
}

// request hands a request to the queue, as soon as the driver has the tag.
func (d *driver) request(tag uint16, opFlags, sectors uint32, start uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for !d.hasLocked(tag) {
		d.cond.Wait()
	}
	delete(d.held, tag)
	b := d.desc[int(tag)*descSize:]
	host.PutUint32(b[0:], opFlags)
	host.PutUint32(b[4:], sectors)
	host.PutUint64(b[8:], start)
	d.out = append(d.out, uring.Completion{UserData: uint64(tag)})
	d.cond.Broadcast()
}

func (d *driver) hasLocked(tag uint16) bool { _, ok := d.held[tag]; return ok }

// answer waits until a tag has come back and returns its result.
func (d *driver) answer(tag uint16) int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	for !d.hasLocked(tag) {
		d.cond.Wait()
	}
	return d.held[tag].res
}

// stop gives up every tag, once the driver has it.
func (d *driver) stop(res int32) {
	for i := range d.q.slots {
		d.mu.Lock()
		for !d.hasLocked(uint16(i)) {
			d.cond.Wait()
		}
		delete(d.held, uint16(i))
		d.out = append(d.out, uring.Completion{UserData: uint64(i), Res: res})
		d.cond.Broadcast()
		d.mu.Unlock()
	}
}

// volume is a LUN in memory whose requests end elsewhere, or within SubmitBatch.
type volume struct {
	mu     sync.Mutex
	data   []byte
	hook   func(*blockio.Request) error
	inline bool
	seen   []blockio.Request
}

func (v *volume) Info() blockdev.Info { return blockdev.Info{Size: int64(len(v.data)), BlockSize: 512} }
func (v *volume) SubmitBatch(rs []*blockio.Request) {
	for _, r := range slices.Clone(rs) {
		if v.inline {
			v.carryOut(r)
		} else {
			go v.carryOut(r)
		}
	}
}

func (v *volume) carryOut(r *blockio.Request) {
	v.mu.Lock()
	seen := *r
	seen.Driver, seen.User, seen.Done, seen.Buf = nil, nil, nil, nil
	v.seen = append(v.seen, seen)
	r.Err = nil
	if v.hook != nil {
		r.Err = v.hook(r)
	}
	if r.Err == nil {
		switch r.Op {
		case blockio.OpRead:
			copy(r.Buf, v.data[r.Off:])
		case blockio.OpWrite:
			copy(v.data[r.Off:], r.Buf)
		case blockio.OpDiscard, blockio.OpWriteZeroes:
			clear(v.data[r.Off : r.Off+r.Len])
		}
	}
	v.mu.Unlock()
	r.Done(r)
}

func newDriver(t *testing.T, v *volume, depth, size int) *driver {
	d := &driver{t: t, desc: make([]byte, depth*descSize), memo: make([]byte, depth*size), held: map[uint16]command{}}
	d.cond = sync.NewCond(&d.mu)
	wake, err := newCounter(make([]byte, 8))
	if err != nil {
		t.Fatal(err)
	}
	d.q = &queue{id: 3, lun: v, fd: 99, fetch: encodeIO(ioFetch), fetC: encodeIO(ioCommit), ring: d, wake: wake, desc: d.desc}
	d.q.init(depth, size, d.memo)
	t.Cleanup(func() {
		b := make([]byte, 8)
		host.PutUint64(b, stopCount)
		unix.Write(int(wake.fd), b) // ends readCounter
		d.readers.Wait()
		wake.close()
	})
	return d
}

// run runs the queue, on a thread that it may keep, and tells how it has started and ended.
func (d *driver) run() (started, end chan error) {
	started, end = make(chan error, 1), make(chan error, 1)
	go func() { end <- d.q.run(started) }()
	return started, end
}

// serve runs the queue; the returned function stops it and returns how it ended.
func (d *driver) serve() (stop func(res int32) error) {
	started, end := d.run()
	if err := <-started; err != nil {
		d.t.Fatal(err)
	}
	return func(res int32) error { d.stop(res); return <-end }
}

func (d *driver) buf(tag uint16) []byte { return d.q.slots[tag].buf }

func TestRequests(t *testing.T) {
	v := &volume{data: make([]byte, 64<<10)}
	d := newDriver(t, v, 4, 4096)
	stop := d.serve()
	for tag, c := range d.held {
		if c.op != uint64(d.q.fetch) || c.queue != 3 || c.addr != addressOf(d.buf(tag)) {
			t.Errorf("tag %d: %+v", tag, c)
		}
	}
	pattern := bytes.Repeat([]byte{7}, 4096)
	copy(d.buf(0), pattern)
	for i, tc := range []struct {
		op      uint32
		sectors uint32
		start   uint64
		want    blockio.Request
		res     int32
	}{
		{opWrite | flagFUA, 8, 16, blockio.Request{Op: blockio.OpWrite, Off: 8192, Len: 4096, FUA: true}, 4096},
		{opRead | flagFUA, 2, 17, blockio.Request{Op: blockio.OpRead, Off: 17 * 512, Len: 1024}, 1024},
		{opFlush, 0, 0, blockio.Request{Op: blockio.OpFlush}, 0},
		{opWriteZeroes, 1, 16, blockio.Request{Op: blockio.OpWriteZeroes, Off: 8192, Len: 512, MayUnmap: true}, 0},
		{opWriteZeroes | flagNoUnmap | flagFUA, 64, 32, blockio.Request{Op: blockio.OpWriteZeroes, Off: 16384, Len: 32768, FUA: true}, 0},
		{opDiscard, 100, 1, blockio.Request{Op: blockio.OpDiscard, Off: 512, Len: 51200}, 0},
	} {
		d.request(0, tc.op, tc.sectors, tc.start)
		if got := d.answer(0); got != tc.res {
			t.Errorf("%d: result %d, want %d", i, got, tc.res)
		}
		if tc.op&opMask == opRead && !bytes.Equal(d.buf(0)[:1024], pattern[:1024]) {
			t.Error("what was written is not read")
		}
		if got := v.seen[len(v.seen)-1]; len(v.seen) != i+1 || got.Op != tc.want.Op || got.Off != tc.want.Off || got.Len != tc.want.Len || got.FUA != tc.want.FUA || got.MayUnmap != tc.want.MayUnmap {
			t.Errorf("%d: the volume got %+v, want %+v", i, got, tc.want)
		}
	}
	if err := stop(-int32(syscall.ENODEV)); err != nil {
		t.Error(err)
	}
}

func TestRefusedRequests(t *testing.T) {
	v := &volume{data: make([]byte, 64<<10)}
	d := newDriver(t, v, 1, 4096)
	stop := d.serve()
	for _, tc := range []struct {
		op, sectors uint32
		err         error
		want        syscall.Errno
		calls       int
	}{
		{opRead, 9, nil, syscall.EINVAL, 0}, // more than the tag's memory
		{opWrite, 1 << 23, nil, syscall.EINVAL, 0},
		{4, 1, nil, syscall.EOPNOTSUPP, 0}, // WRITE SAME
		{99, 1, nil, syscall.EOPNOTSUPP, 0},
		{opWrite, 1, blockdev.ErrNoSpace, syscall.ENOSPC, 1},
		{opRead, 1, blockio.ErrSessionLost, syscall.EIO, 1},
		{opFlush, 0, blockio.ErrCacheLost, syscall.EIO, 1},
		{opDiscard, 1, blockdev.ErrNotSupported, syscall.EOPNOTSUPP, 1},
		{opWriteZeroes, 1, blockdev.ErrNotSupported, syscall.EOPNOTSUPP, 2}, // once more, by another command
	} {
		v.mu.Lock()
		v.seen, v.hook = nil, func(*blockio.Request) error { return tc.err }
		v.mu.Unlock()
		d.request(0, tc.op, tc.sectors, 0)
		if got := d.answer(0); got != -int32(tc.want) || len(v.seen) != tc.calls {
			t.Errorf("op %d: result %d after %d calls, want %d after %d", tc.op, got, len(v.seen), -int32(tc.want), tc.calls)
		}
	}
	if err := stop(-int32(syscall.ENODEV)); err != nil {
		t.Error(err)
	}
}

// A queue whose ring fails leaves requests with the volume, which has their memory: the device is
// not taken apart before they have ended, and nobody is woken for them any more.
func TestRingFailsUnderRequests(t *testing.T) {
	v := &volume{data: make([]byte, 64<<10)}
	entered, release := make(chan struct{}), make(chan struct{})
	v.hook = func(*blockio.Request) error {
		close(entered)
		<-release
		return nil
	}
	d := newDriver(t, v, 1, 4096)
	started, end := d.run()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	d.request(0, opRead, 8, 0)
	<-entered
	d.mu.Lock()
	d.enter = syscall.EBADF
	d.out = append(d.out, uring.Completion{UserData: wakeTag, Res: 8}) // ends its wait for the ring
	d.cond.Broadcast()
	d.mu.Unlock()
	if err := <-end; !errors.Is(err, syscall.EBADF) {
		t.Errorf("it has ended with %v", err)
	}
	dev := &Device{queues: []*queue{d.q}}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if n := dev.Rest(over); n != 1 {
		t.Errorf("%d requests are with the volume", n)
	}
	d.q.mu.Lock()
	if d.q.waiting {
		t.Error("it is woken though it has ended")
	}
	d.q.mu.Unlock()
	close(release)
	if n := dev.Rest(t.Context()); n != 0 {
		t.Errorf("%d requests are with the volume at the end", n)
	}
}

// A target that turns WRITE SAME down is asked once more.
func TestWriteZeroesFallsBack(t *testing.T) {
	v := &volume{data: bytes.Repeat([]byte{1}, 4096)}
	refused := false
	v.hook = func(*blockio.Request) error {
		if !refused {
			refused = true
			return blockdev.ErrNotSupported
		}
		return nil
	}
	d := newDriver(t, v, 1, 4096)
	stop := d.serve()
	d.request(0, opWriteZeroes, 8, 0)
	if got := d.answer(0); got != 0 || v.data[0] != 0 || len(v.seen) != 2 {
		t.Errorf("result %d, byte %d, %d calls", got, v.data[0], len(v.seen))
	}
	stop(-int32(syscall.ENODEV))
}

// All tags at once against a model, with requests that end elsewhere and within SubmitBatch.
func TestModel(t *testing.T) {
	for _, inline := range []bool{false, true} {
		const depth, blocks = 8, 64
		v := &volume{data: make([]byte, blocks*512), inline: inline}
		d := newDriver(t, v, depth, 4096)
		stop := d.serve()
		model := make([]byte, len(v.data))
		rnd := rand.New(rand.NewPCG(1, 2))
		for round := range 200 {
			// Each tag has blocks of its own in a round, so that their order does not matter.
			order := rnd.Perm(depth)
			type want struct {
				res  int32
				data []byte
			}
			wants := map[int]want{}
			for _, i := range order {
				start, n := i*8, rnd.IntN(8)+1
				part := model[start*512 : (start+n)*512]
				op := []uint32{opRead, opWrite, opWriteZeroes, opDiscard}[rnd.IntN(4)]
				d.answer(uint16(i))
				switch op {
				case opRead:
					wants[i] = want{int32(n * 512), bytes.Clone(part)}
				case opWrite:
					b := d.buf(uint16(i))[:n*512]
					for k := range b {
						b[k] = byte(rnd.Uint32())
					}
					copy(part, b)
					wants[i] = want{res: int32(n * 512)}
				default:
					clear(part)
					wants[i] = want{}
				}
				d.request(uint16(i), op, uint32(n), uint64(start))
			}
			for i, w := range wants {
				if got := d.answer(uint16(i)); got != w.res {
					t.Fatalf("round %d tag %d: result %d, want %d", round, i, got, w.res)
				}
				if w.data != nil && !bytes.Equal(d.buf(uint16(i))[:len(w.data)], w.data) {
					t.Fatalf("round %d tag %d: other data", round, i)
				}
			}
		}
		if err := stop(-int32(syscall.ENODEV)); err != nil || !bytes.Equal(model, v.data) {
			t.Errorf("%v; same content: %v", err, bytes.Equal(model, v.data))
		}
	}
}

// The driver may refuse a queue, break one, and give a tag up for another reason than a stop.
func TestQueueEnds(t *testing.T) {
	v := &volume{data: make([]byte, 4096)}
	d := newDriver(t, v, 2, 4096)
	d.refuse = map[uint16]int32{1: -int32(syscall.EBUSY)}
	started, end := d.run()
	if err := <-end; !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "tag 1") || <-started != err {
		t.Errorf("refused: %v", err)
	}
	d = newDriver(t, v, 2, 4096)
	d.enter = os.NewSyscallError("io_uring_enter", syscall.EBADF)
	started, end = d.run()
	if err := <-end; !errors.Is(err, syscall.EBADF) || <-started != err {
		t.Errorf("no ring: %v", err)
	}
	d = newDriver(t, v, 2, 4096)
	if err := d.serve()(-int32(syscall.EINVAL)); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("given up: %v", err)
	}
	d = newDriver(t, v, 2, 4096)
	started, end = d.run()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.enter = os.NewSyscallError("io_uring_enter", syscall.EBADF)
	d.mu.Unlock()
	d.request(0, opRead, 1, 0)
	if err := <-end; !errors.Is(err, syscall.EBADF) {
		t.Errorf("broken: %v", err)
	}
}
