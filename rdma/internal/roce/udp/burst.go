package udp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Limits of one call. The kernel's own are 1024 pieces per message, and 64 packets
// (128 in newer ones) and 65507 bytes over IPv4, as the IP packet before it is cut has
// at most 65535.
const (
	MaxPieces = 1024 // of memory, in a Burst

	maxMessages = 64
	maxPackets  = 64
	maxBytes    = 65535 - 40 - 8
)

// Burst collects what one call sends: messages, each of which goes to one peer as one
// packet, or as several of one size of which the last may be shorter. Memory is named,
// not copied: it must stay as it is until Send has returned. A Burst is for one
// goroutine at a time, and is used again: nothing is allocated by its use.
type Burst struct {
	hdrs  [maxMessages]mmsghdr
	ctls  [maxMessages]cmsgBuf
	sizes [maxMessages]int  // of the longest packet of each
	cut   [maxMessages]bool // it has several packets
	iov   [MaxPieces]unix.Iovec
	n     int // messages
	piece int // pieces of all
	sent  int // messages that Send has done with
	open  struct{ bytes, packets, size, pieces int }

	// The call that is being made, and the functions that make it for RawConn.
	lane *Lane
	err  error
	try  func(fd uintptr)
	wait func(fd uintptr) bool
}

// NewBurst makes one.
func NewBurst() *Burst {
	b := new(Burst)
	b.try = func(fd uintptr) { b.err = b.lane.send(fd, b) }
	b.wait = func(fd uintptr) bool {
		b.err = b.lane.send(fd, b)
		return b.err != ErrAgain
	}
	return b
}

// Reset empties the Burst.
func (b *Burst) Reset() {
	clear(b.iov[:b.piece]) // let go of the memory
	b.n, b.piece, b.sent = 0, 0, 0
	b.open.bytes, b.open.packets, b.open.size, b.open.pieces = 0, 0, 0, 0
}

// Len is the number of messages, Sent of those that Send is done with: they were sent,
// or the one before has failed.
func (b *Burst) Len() int { return b.n }

// Sent is described at Len.
func (b *Burst) Sent() int { return b.sent }

// Message begins a message to a peer, of packets of size bytes; false when the Burst
// has no more room for one. Then Packet refuses too.
func (b *Burst) Message(to *Peer, size int) bool {
	b.open.bytes, b.open.packets, b.open.size, b.open.pieces = 0, 0, 0, 0
	if b.n == maxMessages || b.piece == MaxPieces || size < 1 || size > maxBytes {
		return false
	}
	m := &b.hdrs[b.n].hdr
	*m = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&to.raw)), Namelen: to.n, Iov: &b.iov[b.piece]}
	b.sizes[b.n], b.cut[b.n] = 0, false
	b.n++
	b.open.size = size
	return true
}

// Withdraw takes back a message that has been begun and has no packet: an empty datagram
// would be sent for it.
func (b *Burst) Withdraw() {
	b.n--
	b.open.bytes, b.open.packets, b.open.size, b.open.pieces = 0, 0, 0, 0
}

// Packet adds one packet to the message, in pieces of memory; false, and nothing is
// added, when it does not fit.
func (b *Burst) Packet(pieces ...[]byte) bool {
	n := 0
	for _, p := range pieces {
		n += len(p)
	}
	if !b.Fits(n, len(pieces)) {
		return false
	}
	o := &b.open
	for _, p := range pieces {
		if len(p) > 0 {
			v := &b.iov[b.piece]
			v.Base = unsafe.SliceData(p)
			v.SetLen(len(p))
			b.piece++
			o.pieces++
		}
	}
	o.bytes += n
	o.packets++
	b.sizes[b.n-1] = max(b.sizes[b.n-1], n)
	m := &b.hdrs[b.n-1].hdr
	m.SetIovlen(o.pieces)
	if o.packets == 2 {
		b.cut[b.n-1] = true
		b.control(unix.SOL_UDP, unix.UDP_SEGMENT, 2, uint32(o.size))
	}
	return true
}

// ecnCapable is ECT(0) of RFC 3168 §5.
const ecnCapable = 2

// MarkECT says of the message that has been begun, before its first packet, that routers may
// mark its packets where they would drop others: the sender does what is asked of it then.
func (b *Burst) MarkECT() {
	if b.hdrs[b.n-1].hdr.Namelen == unix.SizeofSockaddrInet4 {
		b.control(unix.IPPROTO_IP, unix.IP_TOS, 4, ecnCapable)
	} else {
		b.control(unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 4, ecnCapable)
	}
}

// control adds a control message to the message.
func (b *Burst) control(level, option int32, size int, value uint32) {
	m, c := &b.hdrs[b.n-1].hdr, &b.ctls[b.n-1]
	m.Control = &c[0]
	m.SetControllen(c.add(int(m.Controllen), level, option, size, value))
}

// Fits says whether Packet would take n bytes in so many pieces. It does not when the
// message has as many packets or bytes as one can have, the packet before was shorter
// than the others, this one is longer, or the Burst has not enough room for pieces.
func (b *Burst) Fits(n, pieces int) bool {
	o := &b.open
	return n > 0 && n <= o.size && o.packets < maxPackets && o.bytes+n <= maxBytes && o.bytes == o.packets*o.size && b.piece+pieces <= MaxPieces
}

// Packets is how many packets the message has: the place of the next one.
func (b *Burst) Packets() int { return b.open.packets }
