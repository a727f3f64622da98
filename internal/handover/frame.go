package handover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// A frame:
//
//	0        4      5         6        8         12       16
//	| "sftu" | kind | nothing | files  | length  | CRC32C | payload ...
//
// in big endian; files counts the descriptors that come with the frame.
const (
	headerLen = 16
	magic     = "sftu"
)

type kind uint8

const (
	kindHello kind = 1 + iota
	kindRefuse
	kindFiles
	kindState
	kindReady
	kindYours
)

var kindNames = [...]string{kindHello: "hello", kindRefuse: "refuse", kindFiles: "files", kindState: "state", kindReady: "ready", kindYours: "yours"}

func (k kind) String() string {
	if k != 0 && int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("frame %d", uint8(k))
}

// Limits of what comes.
const (
	maxHello  = 4 << 10   // bytes of hello
	maxReason = 64 << 10  // bytes of refuse
	maxState  = 256 << 20 // bytes of state
	perFrame  = 128       // descriptors of a frame; Linux takes 253 at a time
	maxFiles  = 64 << 10  // of all frames
)

// limits are how long the payload of a kind may be, and how many descriptors come with it.
func (k kind) limits() (bytes, files int) {
	switch k {
	case kindHello:
		return maxHello, 0
	case kindRefuse:
		return maxReason, 0
	case kindFiles:
		return 0, perFrame
	case kindState:
		return maxState, 1
	}
	return 0, 0
}

// frame is what one end says at a time.
type frame struct {
	kind    kind
	payload []byte
	files   []int
}

// errFrame is what no end of this package sends.
var errFrame = errors.New("handover: what has come is not of this protocol")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (f *frame) header() (h [headerLen]byte) {
	copy(h[:], magic)
	h[4] = byte(f.kind)
	binary.BigEndian.PutUint16(h[6:], uint16(len(f.files)))
	binary.BigEndian.PutUint32(h[8:], uint32(len(f.payload)))
	binary.BigEndian.PutUint32(h[12:], crc32.Checksum(f.payload, castagnoli))
	return h
}

// parseHeader checks the header of a frame, and returns what has to follow it.
func parseHeader(h []byte) (k kind, files, length int, crc uint32, err error) {
	if len(h) != headerLen || string(h[:4]) != magic || h[5] != 0 {
		return 0, 0, 0, 0, errFrame
	}
	k, files, crc = kind(h[4]), int(binary.BigEndian.Uint16(h[6:])), binary.BigEndian.Uint32(h[12:])
	if k < kindHello || k > kindYours {
		return 0, 0, 0, 0, fmt.Errorf("%w: %v", errFrame, k)
	}
	most, mostFiles := k.limits()
	if n := binary.BigEndian.Uint32(h[8:]); n > uint32(most) {
		return 0, 0, 0, 0, fmt.Errorf("handover: %v with %d bytes; %d is the limit", k, n, most)
	} else {
		length = int(n)
	}
	if files > mostFiles {
		return 0, 0, 0, 0, fmt.Errorf("handover: %v with %d descriptors; %d is the limit", k, files, mostFiles)
	}
	return k, files, length, crc, nil
}

// send writes a frame. Its descriptors stay the caller's.
func send(c *net.UnixConn, f frame) error {
	h := f.header()
	var rights []byte
	if len(f.files) > 0 {
		rights = unix.UnixRights(f.files...)
	}
	if n, _, err := c.WriteMsgUnix(h[:], rights, nil); err != nil {
		return fmt.Errorf("handover: sending %v: %w", f.kind, err)
	} else if n != headerLen {
		return fmt.Errorf("handover: sending %v: %w", f.kind, io.ErrShortWrite)
	}
	if len(f.payload) == 0 {
		return nil
	}
	if _, err := c.Write(f.payload); err != nil {
		return fmt.Errorf("handover: sending %v: %w", f.kind, err)
	}
	return nil
}

// receive reads a frame. Its descriptors are the caller's; after an error there are none.
func receive(c *net.UnixConn) (f frame, err error) {
	defer func() {
		if err != nil {
			closeAll(f.files)
			f.files = nil
		}
	}()
	var h [headerLen]byte
	if err := f.read(c, h[:]); err != nil {
		return f, err
	}
	k, files, length, crc, err := parseHeader(h[:])
	if err != nil {
		return f, err
	}
	f.kind = k
	// Grown with what comes: a length alone makes no memory.
	for len(f.payload) < length {
		n := min(length-len(f.payload), max(len(f.payload), 64<<10))
		at := len(f.payload)
		f.payload = append(f.payload, make([]byte, n)...)
		if err := f.read(c, f.payload[at:]); err != nil {
			return f, err
		}
	}
	switch {
	case len(f.files) != files:
		return f, fmt.Errorf("handover: %v has come with %d descriptors of %d; is the limit of open files (LimitNOFILE, ulimit -n) too low?", k, len(f.files), files)
	case crc32.Checksum(f.payload, castagnoli) != crc:
		return f, fmt.Errorf("handover: %v is damaged: its checksum is wrong", k)
	}
	return f, nil
}

// read fills b, and keeps the descriptors that come with it.
func (f *frame) read(c *net.UnixConn, b []byte) error {
	oob := make([]byte, unix.CmsgSpace(4*perFrame))
	for len(b) > 0 {
		n, on, flags, _, err := c.ReadMsgUnix(b, oob)
		if on > 0 {
			if rerr := f.keep(oob[:on]); rerr != nil {
				return rerr
			}
		}
		switch {
		case err != nil:
			return fmt.Errorf("handover: %w", err)
		case flags&unix.MSG_CTRUNC != 0:
			return errors.New("handover: descriptors were lost on the way; is the limit of open files (LimitNOFILE, ulimit -n) too low?")
		case n == 0:
			return fmt.Errorf("handover: %w", io.ErrUnexpectedEOF)
		}
		b = b[n:]
	}
	return nil
}

// keep takes the descriptors out of control messages; package net has asked for them to be
// closed on exec.
func (f *frame) keep(oob []byte) error {
	all, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	for i := range all {
		fds, err := unix.ParseUnixRights(&all[i])
		if err != nil {
			return fmt.Errorf("%w: %w", errFrame, err)
		}
		f.files = append(f.files, fds...)
	}
	return nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// Dup duplicates the descriptor of a socket. Unlike the File methods of package net it leaves
// the mode of the socket alone, which both descriptors share.
func Dup(sc syscall.Conn) (fd int, err error) {
	rc, err := sc.SyscallConn()
	if err != nil {
		return -1, err
	}
	if cerr := rc.Control(func(n uintptr) { fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0) }); cerr != nil {
		return -1, cerr
	}
	return fd, err
}

// DupTCP is Dup for a connection whose bytes are those of its socket: no other can go to
// another process.
func DupTCP(nc net.Conn) (fd int, err error) {
	tc, ok := nc.(*net.TCPConn)
	if !ok {
		return -1, fmt.Errorf("%T cannot go to another process", nc)
	}
	return Dup(tc)
}

// Peer is the process at the other end of a connection that was accepted; 0: unknown.
func Peer(c *net.UnixConn) (pid int) {
	rc, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = rc.Control(func(fd uintptr) {
		if u, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(u.Pid)
		}
	})
	return pid
}
