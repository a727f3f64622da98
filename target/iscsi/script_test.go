package iscsi

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"softiser/internal/iscsi"
)

// script is what happens to the data of WRITEs on its way to the target. Positions
// count the bytes of payload of all Read Responses or Data-Outs of a connection; -1
// is never.
type script struct {
	cut    int           // the connection ends in front of this byte
	flip   int           // a bit of this byte is damaged
	pause  int           // nothing more is sent from this byte on until resume is closed
	paused chan struct{} // closed when the byte before has been sent
	resume chan struct{} // until the test is over if nobody closes it

	digests bool // over TCP: of data
}

var untouched = script{cut: -1, flip: -1, pause: -1}

// pausing is a script that stops in front of a byte.
func pausing(at int) script {
	sc := untouched
	sc.pause, sc.paused, sc.resume = at, make(chan struct{}), make(chan struct{})
	return sc
}

// waitPaused waits until the pause has been reached.
func (sc *script) waitPaused(t *testing.T) {
	t.Helper()
	select {
	case <-sc.paused:
	case <-time.After(ioTime):
		t.Fatal("the target does not ask for the data")
	}
}

// scriptedWire is a TCP relay in front of a target that plays a script on each connection.
type scriptedWire struct {
	t      *testing.T
	ln     net.Listener
	target string
	script script

	wg    sync.WaitGroup
	over  chan struct{}
	mu    sync.Mutex
	conns []net.Conn // guarded by mu
}

// behind returns a server that is reached through a wire.
func (s *server) behind(t *testing.T, sc script) *server {
	t.Helper()
	w := newScriptedWire(t, s.addr, sc)
	via := *s
	via.t, via.addr = t, w.ln.Addr().String()
	return &via
}

func newScriptedWire(t *testing.T, target string, sc script) *scriptedWire {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &scriptedWire{t: t, ln: ln, target: target, script: sc, over: make(chan struct{})}
	w.wg.Go(w.accept)
	t.Cleanup(func() {
		ln.Close()
		close(w.over)
		w.mu.Lock()
		for _, c := range w.conns {
			c.Close()
		}
		w.mu.Unlock()
		w.wg.Wait()
	})
	return w
}

func (w *scriptedWire) accept() {
	for {
		from, err := w.ln.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", w.target)
		if err != nil {
			from.Close()
			continue
		}
		w.mu.Lock()
		w.conns = append(w.conns, from, to)
		w.mu.Unlock()
		w.wg.Go(func() { // answers
			io.Copy(from, to)
			from.Close()
		})
		w.wg.Go(func() {
			w.relay(from, to)
			// A reset would take away what the target has not read.
			to.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, from)
		})
	}
}

// relay forwards message by message.
func (w *scriptedWire) relay(from io.Reader, to io.Writer) {
	r := bufio.NewReader(from)
	next := w.pdu
	if key, err := r.Peek(len(mpaKey)); err != nil {
		return
	} else if string(key) == mpaKey {
		next = fpdu
		head, _ := r.Peek(20)
		if _, err := io.CopyN(to, r, 20+int64(binary.BigEndian.Uint16(head[18:]))); err != nil {
			return
		}
	}
	for seen := 0; ; {
		msg, data, err := next(r)
		if err != nil || w.play(to, msg, data, seen) != nil {
			return
		}
		seen += len(data)
	}
}

// play sends a message whose payload is data, a part of msg, as the script wants it;
// seen bytes of payload have passed before. An error ends the connection.
func (w *scriptedWire) play(to io.Writer, msg, data []byte, seen int) error {
	sc := &w.script
	inside := func(at int) bool { return at >= seen && at < seen+len(data) }
	start := cap(msg) - cap(data) // of data in msg
	before := func(at int) int { return start + at - seen }
	if inside(sc.flip) {
		data[sc.flip-seen] ^= 0x10
	}
	if inside(sc.cut) {
		to.Write(msg[:before(sc.cut)])
		return io.EOF
	}
	if inside(sc.pause) {
		k := before(sc.pause)
		if _, err := to.Write(msg[:k]); err != nil {
			return err
		}
		close(sc.paused)
		select {
		case <-sc.resume:
		case <-w.over:
			return io.EOF
		}
		msg = msg[k:]
	}
	_, err := to.Write(msg)
	return err
}

// fpdu reads an FPDU (RFC 5044 §4.3); data is what a Read Response carries.
func fpdu(r *bufio.Reader) (msg, data []byte, err error) {
	const tagged, crc = 16, 4 // length field and DDP header of a tagged segment
	head, err := r.Peek(4)
	if err != nil {
		return nil, nil, err
	}
	ulen := int(binary.BigEndian.Uint16(head))
	msg = make([]byte, (2+ulen+3)&^3+crc)
	if _, err = io.ReadFull(r, msg); err == nil && msg[3]&0xf == 2 {
		data = msg[tagged : 2+ulen]
	}
	return msg, data, err
}

// pdu reads an iSCSI PDU; data is what a Data-Out carries.
func (w *scriptedWire) pdu(r *bufio.Reader) (msg, data []byte, err error) {
	head, err := r.Peek(iscsi.BHSLen)
	if err != nil {
		return nil, nil, err
	}
	bhs := (*iscsi.BHS)(head)
	start, n := iscsi.BHSLen+bhs.AHSLen(), bhs.DataLen()
	size := start + n + iscsi.PadLen(n)
	if op := bhs.Opcode(); w.script.digests && n > 0 && op != iscsi.OpLoginRequest {
		size += 4
	}
	msg = make([]byte, size)
	if _, err = io.ReadFull(r, msg); err == nil && (*iscsi.BHS)(msg).Opcode() == iscsi.OpDataOut {
		data = msg[start : start+n]
	}
	return msg, data, err
}
