package sockio

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"softiser/internal/memfault"
)

// TapFilter says which connections over TCP a Tap is about.
type TapFilter struct {
	// Local is the near end: port 0 stands for every port, no address or an unspecified one for
	// every address.
	Local netip.AddrPort
	// Remotes are far ends, one of which it has to be; port 0 stands for every port. None:
	// everybody.
	Remotes []netip.AddrPort
	// New leaves those out that are open when the tap begins.
	New bool
	// Most is how many connections it takes, the first ones; at most MaxTapped.
	Most int
}

// MaxTapped bounds TapFilter.Most.
const MaxTapped = 64

// Tap copies what connections of this process send and receive, in the order in which they do,
// until it is stopped. With TLS it is what is above. There is one Tap at a time; while there is
// none, a call of a Conn looks at one pointer. A Tap waits for nobody: what finds no room in its
// memory is dropped and counted, and leaves a gap in the offsets of the stream.
type Tap struct {
	filter TapFilter
	serial uint64
	more   chan struct{} // something has been entered
	out    []byte        // of Next

	mu      sync.Mutex // held while a connection of the tap sends, so that no answer is entered before what it answers
	conns   []tapped
	ring    []byte
	r, w    uint64 // bytes taken from the ring and put there so far
	dropped uint64
	stopped bool
}

// tapped is a connection of a Tap. offs are how far its streams are, by direction.
type tapped struct {
	local, remote netip.AddrPort
	offs          [2]uint64
	over          bool
}

// TapKind is what a TapRecord tells.
type TapKind uint8

// Kinds.
const (
	TapSent        TapKind = iota // bytes
	TapReceived                   // bytes
	TapSentEnd                    // no more will be sent
	TapReceivedEnd                // no more will come
	TapBegin                      // the connection is new
)

// TapRecord is something that a connection has done.
type TapRecord struct {
	Time          time.Time
	Conn          int // counted from 0
	Local, Remote netip.AddrPort
	Kind          TapKind
	Off           uint64 // of Data in its stream
	Data          []byte // until the next call of Next
}

// ErrTapped: there is a tap already.
var ErrTapped = errors.New("a capture is under way, and there is one at a time")

var (
	tapping atomic.Pointer[Tap] // nil: there is none
	taps    atomic.Uint64       // how many there have been
)

// StartTap begins to copy, into memory of so many bytes.
func StartTap(f TapFilter, memory int) (*Tap, error) {
	f.Most = min(max(f.Most, 1), MaxTapped)
	t := &Tap{filter: f, serial: taps.Add(1), more: make(chan struct{}, 1), ring: make([]byte, memory)}
	if !tapping.CompareAndSwap(nil, t) {
		return nil, ErrTapped
	}
	return t, nil
}

// Stop ends the copying; Next returns what has been copied so far.
func (t *Tap) Stop() {
	tapping.CompareAndSwap(t, nil)
	t.mu.Lock()
	t.stopped = true
	t.mu.Unlock()
	t.wake()
}

// StopTap stops the tap that there is, and reports whether there was one.
func StopTap() bool {
	t := tapping.Load()
	if t != nil {
		t.Stop()
	}
	return t != nil
}

// Dropped is how many bytes found no room.
func (t *Tap) Dropped() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dropped
}

func (t *Tap) wake() {
	select {
	case t.more <- struct{}{}:
	default:
	}
}

// The head of a record in the ring: time, offset, length, connection, kind.
const tapHead = 8 + 8 + 4 + 1 + 1

// Next waits for a record. It ends with io.EOF when the tap has been stopped, or all that it may
// take have ended; before it waits it calls waiting.
func (t *Tap) Next(waiting func()) (TapRecord, error) {
	for {
		r, ok, over := t.take()
		if ok {
			return r, nil
		}
		if over {
			return TapRecord{}, io.EOF
		}
		waiting()
		<-t.more
	}
}

// take is Next without waiting. It is the only reader of the ring, and copies without the lock:
// nobody writes to what has not been given back.
func (t *Tap) take() (r TapRecord, ok, over bool) {
	t.mu.Lock()
	begin, end := t.r, t.w
	over = t.stopped || len(t.conns) == t.filter.Most && !slices.ContainsFunc(t.conns, func(c tapped) bool { return !c.over })
	t.mu.Unlock()
	if begin == end {
		return r, false, over
	}
	var h [tapHead]byte
	t.get(h[:], begin)
	n := int(binary.LittleEndian.Uint32(h[16:]))
	t.out = slices.Grow(t.out[:0], n)[:n]
	t.get(t.out, begin+tapHead)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.r = begin + tapHead + uint64(n)
	c := t.conns[h[20]]
	return TapRecord{
		Time: time.Unix(0, int64(binary.LittleEndian.Uint64(h[:]))), Conn: int(h[20]), Local: c.local, Remote: c.remote,
		Kind: TapKind(h[21]), Off: binary.LittleEndian.Uint64(h[8:]), Data: t.out,
	}, true, false
}

// get and put copy from and to the ring at a position.
func (t *Tap) get(p []byte, at uint64) {
	n := copy(p, t.ring[at%uint64(len(t.ring)):])
	copy(p[n:], t.ring)
}

func (t *Tap) put(p []byte, at uint64) {
	n := copy(t.ring[at%uint64(len(t.ring)):], p)
	copy(t.ring, p[n:])
}

// endsOf returns both ends of a connection over TCP.
func (c *Conn) endsOf() (local, remote netip.AddrPort) {
	l, lok := c.nc.LocalAddr().(*net.TCPAddr)
	r, rok := c.nc.RemoteAddr().(*net.TCPAddr)
	if !lok || !rok {
		return local, remote
	}
	a, b := l.AddrPort(), r.AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), netip.AddrPortFrom(b.Addr().Unmap(), b.Port())
}

// matches reports whether an end is one that an address names.
func matches(want, is netip.AddrPort) bool {
	return (want.Port() == 0 || want.Port() == is.Port()) &&
		(!want.Addr().IsValid() || want.Addr().IsUnspecified() || want.Addr().Unmap() == is.Addr())
}

func (f *TapFilter) takes(local, remote netip.AddrPort) bool {
	return matches(f.Local, local) && (len(f.Remotes) == 0 || slices.ContainsFunc(f.Remotes, func(a netip.AddrPort) bool { return matches(a, remote) }))
}

// of returns which of its connections c is; -1: none. c remembers it.
func (t *Tap) of(c *Conn) int {
	v := c.tapped.Load()
	if v>>8 != t.serial {
		t.mu.Lock()
		v = t.serial<<8 | uint64(t.judge(c, false)+1)
		t.mu.Unlock()
		c.tapped.Store(v)
	}
	return int(v&0xff) - 1
}

// judge is of for one that is not known yet. A connection that goes on as another Conn, as one
// does that turns from a stream into RDMA, is the same. The caller holds t.mu.
func (t *Tap) judge(c *Conn, begins bool) int {
	local, remote := c.endsOf()
	if !local.IsValid() || t.stopped {
		return -1
	}
	same := func(x tapped) bool { return !x.over && x.local == local && x.remote == remote }
	if i := slices.IndexFunc(t.conns, same); i >= 0 {
		return i
	}
	if t.filter.New && !begins || len(t.conns) == t.filter.Most || !t.filter.takes(local, remote) {
		return -1
	}
	t.conns = append(t.conns, tapped{local: local, remote: remote})
	if i := len(t.conns) - 1; begins {
		t.event(i, TapBegin)
	}
	return len(t.conns) - 1
}

// beginTap shows a new connection to the tap that there is.
func (c *Conn) beginTap() {
	if t := tapping.Load(); t != nil {
		t.mu.Lock()
		c.tapped.Store(t.serial<<8 | uint64(t.judge(c, true)+1))
		t.mu.Unlock()
	}
}

// event enters something without bytes. The caller holds t.mu.
func (t *Tap) event(i int, k TapKind) {
	x := &t.conns[i]
	if x.over || tapHead > len(t.ring)-int(t.w-t.r) {
		return
	}
	t.head(i, k, x.offs[k&1], 0)
	t.w += tapHead
	t.wake()
}

func (t *Tap) head(i int, k TapKind, off uint64, n int) {
	var h [tapHead]byte
	binary.LittleEndian.PutUint64(h[:], uint64(time.Now().UnixNano()))
	binary.LittleEndian.PutUint64(h[8:], off)
	binary.LittleEndian.PutUint32(h[16:], uint32(n))
	h[20], h[21] = byte(i), byte(k)
	t.put(h[:], t.w)
}

// enter copies the first n bytes of v, which connection i has moved. The caller holds t.mu.
func (t *Tap) enter(i int, k TapKind, v []Vec, n int) {
	x := &t.conns[i]
	if t.stopped || x.over || n <= 0 {
		return
	}
	off := x.offs[k]
	x.offs[k] += uint64(n)
	if tapHead+n > len(t.ring)-int(t.w-t.r) || !t.copy(v, n) {
		t.dropped += uint64(n)
		return
	}
	t.head(i, k, off, n)
	t.w += tapHead + uint64(n)
	t.wake()
}

// copy puts bytes behind the head that is to be written. The memory may be the mapping of a file
// that cannot be read any more: then it reports false.
func (t *Tap) copy(v []Vec, n int) (ok bool) {
	defer memfault.Guard(debug.SetPanicOnFault(true), &ok)
	at := t.w + tapHead
	for i := 0; n > 0; i++ {
		m := min(n, int(v[i].Len))
		t.put(unsafe.Slice(v[i].Base, m), at)
		at += uint64(m)
		n -= m
	}
	return true
}

// send is what a tapped connection does instead of write.
func (t *Tap) send(c *Conn, i int, v []Vec, write func(*Conn, []Vec, bool) (int, error), soon bool) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := write(c, v, soon)
	t.enter(i, TapSent, v, n)
	return n, err
}

// received enters what a read has returned.
func (t *Tap) received(i int, v []Vec, n int, err error) {
	if err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n == 0 {
		t.event(i, TapReceivedEnd)
		return
	}
	t.enter(i, TapReceived, v, n)
}

// Tapped reports whether what the connection does is copied.
func (c *Conn) Tapped() bool {
	t := tapping.Load()
	return t != nil && t.of(c) >= 0
}

// Told enters what has gone over the connection before it became a Conn: a question and the
// answer to it; asked: the question was sent.
func (c *Conn) Told(question, answer []byte, asked bool) {
	t := tapping.Load()
	if t == nil {
		return
	}
	i := t.of(c)
	if i < 0 {
		return
	}
	kind := TapReceived
	if asked {
		kind = TapSent
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.enter(i, kind, Append(nil, question), len(question))
	t.enter(i, kind^1, Append(nil, answer), len(answer))
}

// endTap enters the end of what is sent; over: the connection is closed.
func (c *Conn) endTap(over bool) {
	t := tapping.Load()
	if t == nil {
		return
	}
	i := t.of(c)
	if i < 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.event(i, TapSentEnd)
	if over {
		t.conns[i].over = true
		t.wake()
	}
}
