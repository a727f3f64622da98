package iwarp

import (
	"fmt"
	"slices"
	"time"

	"softiser/internal/sockio"
)

// ZerocopyMode says whether payload leaves by MSG_ZEROCOPY: from the memory of the
// work request, without the kernel's copy. It pays for long payloads on real
// links; over loopback the kernel copies anyway, later and at a higher price.
type ZerocopyMode uint8

// Modes. The zero value is whatever the default is where it stands.
const (
	ZerocopyOff  ZerocopyMode = iota + 1
	ZerocopyAuto              // until the kernel reports that it copied, or runs out of room
	ZerocopyOn                // always, for payloads of ZerocopyMin bytes and more
)

var zerocopyNames = [...]string{"default", ZerocopyOff: "off", ZerocopyAuto: "auto", ZerocopyOn: "on"}

// String is the name that ParseZerocopyMode reads.
func (m ZerocopyMode) String() string {
	if int(m) < len(zerocopyNames) {
		return zerocopyNames[m]
	}
	return fmt.Sprintf("ZerocopyMode(%d)", uint8(m))
}

// ParseZerocopyMode reads "auto", "on" or "off".
func ParseZerocopyMode(s string) (ZerocopyMode, error) {
	if i := slices.Index(zerocopyNames[:], s); i > 0 {
		return ZerocopyMode(i), nil
	}
	return 0, fmt.Errorf("zerocopy mode %q: want auto, on or off", s)
}

const (
	zcMinDefault = 64 << 10
	zcBuffers    = 8 // header buffers of a connection that the kernel may need, and the transmitter's
)

// zcCall is one call whose memory the kernel may still need.
type zcCall struct {
	id    uint32
	start uint64 // stream offset before it
	buf   *hdrBuf
	done  bool
}

// hdrBuf is a header buffer, the transmitter's or that of rounds that are on their way.
type hdrBuf struct {
	b    [hdrRing]byte
	refs int  // calls that need it; guarded by QP.Mu
	left bool // by the transmitter: the last of them gives it back; guarded by QP.Mu
}

// zerocopy is guarded by QP.Mu, except for used, auto and min, which are fixed.
type zerocopy struct {
	qp    *QP
	used  bool // anything may be sent by reference
	auto  bool // until the kernel copies
	min   int
	off   bool // auto, and it has
	next  uint32
	calls []zcCall // in the order of their numbers
	busy  int      // header buffers that calls need
}

// ackedLocked is the stream offset up to which neither the socket nor the kernel
// needs memory of work requests any more.
func (z *zerocopy) ackedLocked() uint64 {
	qp := z.qp
	if len(z.calls) > 0 {
		return z.calls[0].start
	}
	return qp.tx.sentOff
}

// refLocked enters that another call needs b, unrefLocked that one does no longer.
func (z *zerocopy) refLocked(b *hdrBuf) {
	if b.refs++; b.refs == 1 {
		z.busy++
	}
}

// unrefLocked is described at refLocked.
func (z *zerocopy) unrefLocked(b *hdrBuf) {
	if b.refs--; b.refs == 0 {
		z.busy--
		if b.left {
			b.left = false
			hdrBufs.Put(b)
		}
	}
}

// leave gives the transmitter's header buffer back, at once or when no call needs it any more.
func (z *zerocopy) leave(b *hdrBuf) {
	z.qp.Mu.Lock()
	needed := b.refs > 0
	b.left = needed
	z.qp.Mu.Unlock()
	if !needed {
		hdrBufs.Put(b)
	}
}

// write sends the round by reference if it is worth it and possible. used is
// false when it was not tried, or failed for lack of room: then it is to be sent
// in the ordinary way. Preconditions: the caller is the transmitter and holds
// io.
func (z *zerocopy) write() (n int, err error, used bool) {
	qp, t := z.qp, &z.qp.tx
	if !z.used || t.round.bytes < z.min || len(t.round.refs) > 0 {
		// Memory that the peer reads may be revoked at any time, and the kernel must not refer to it afterwards: copy it.
		return 0, nil, false
	}
	buf := t.round.room.hdr
	qp.Mu.Lock()
	if z.off || z.busy >= zcBuffers-1 && buf.refs == 0 {
		qp.Mu.Unlock()
		return 0, nil, false
	}
	// Recorded before the call, because the kernel's notice may come before the call returns.
	z.calls = append(z.calls, zcCall{id: z.next, start: qp.tx.sentOff, buf: buf})
	z.next++
	z.refLocked(buf)
	qp.halt.goOnLocked() // only the receiver takes the notices
	qp.Mu.Unlock()
	t.round.byRef = true
	n, err = qp.conn.WritevZerocopy(t.round.iov)
	t.stats.SendCalls++
	if n > 0 {
		t.stats.Zerocopy++
		return n, nil, true
	}
	qp.Mu.Lock()
	z.calls = z.calls[:len(z.calls)-1]
	z.next--
	z.unrefLocked(buf)
	if err == sockio.ErrNoBufs && z.auto {
		z.off = true
	}
	qp.Mu.Unlock()
	return n, err, err != sockio.ErrNoBufs && err != sockio.ErrFault
}

// drain takes the kernel's notices and completes what they release. It runs in
// the receive goroutine.
func (z *zerocopy) drain() {
	qp := z.qp
	qp.Mu.Lock()
	waiting := len(z.calls) > 0
	qp.Mu.Unlock()
	if !waiting {
		return
	}
	qp.conn.Notices(func(n sockio.Notice) {
		qp.Mu.Lock()
		defer qp.Mu.Unlock()
		for i := range z.calls {
			if c := &z.calls[i]; c.id-n.Lo <= n.Hi-n.Lo && !c.done {
				c.done = true
				z.unrefLocked(c.buf)
				c.buf = nil
			}
		}
		k := 0
		for k < len(z.calls) && z.calls[k].done {
			k++
		}
		z.calls = z.calls[:copy(z.calls, z.calls[k:])]
		if n.Copied && z.auto {
			z.off = true
		}
		qp.sweepLocked()
		if !qp.tx.busy {
			qp.tx.finLocked()
		}
		qp.halt.tellLocked()
	})
	qp.inRx.Store(true)
	qp.SendCQ.Dispatch()
	qp.inRx.Store(false)
}

// settle is called at the end of the connection, before memory goes back to its
// owners: it waits a moment for outstanding notices. False: the kernel has not let go.
func (z *zerocopy) settle() bool {
	qp := z.qp
	deadline := time.Now().Add(termTimeout)
	for {
		z.drain()
		qp.Mu.Lock()
		left := len(z.calls)
		qp.Mu.Unlock()
		if left == 0 {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(sockio.Pause)
	}
}
