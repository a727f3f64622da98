package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/dustin/go-humanize/english"
	"golang.org/x/sys/unix"

	"softiser/initiator/blockio"
	"softiser/internal/handover"
)

// Carried is what goes of a server at rest to the process that takes its place.
type Carried struct {
	// Clients are those whose flushes fail once each when a cache was lost, and how many
	// losses each of them knows of.
	Clients []uint32            `json:"clients"`
	Conns   []CarriedConnection `json:"connections"`
}

// CarriedConnection is a connection in the transmission phase.
type CarriedConnection struct {
	FD    int `json:"-"`              // the caller's of Carry, and Prepare's
	File  int `json:"file"`           // index of FD on its way
	Bulk  int `json:"-"`              // a file with Unread and Unsent; -1: there is nothing in it
	Bytes int `json:"bulk,omitempty"` // index of Bulk on its way, plus 1; 0: none

	Export     string `json:"export"`
	Structured bool   `json:"structured"`
	Allocation bool   `json:"allocation"`
	Kernel     bool   `json:"kernel,omitempty"` // that of a kernel device
	Client     int    `json:"client"`           // index in Clients

	Unread int `json:"unread,omitempty"` // bytes that come before those in the socket
	Unsent int `json:"unsent,omitempty"` // bytes that leave before everything else
	Replay int `json:"replay,omitempty"` // requests in Unread that may have taken effect
}

// Files returns where the descriptors are and where their indices go; descriptors of -1 are
// none.
func (k *Carried) Files(f func(fd, index *int)) {
	for i := range k.Conns {
		c := &k.Conns[i]
		f(&c.FD, &c.File)
		if c.Bulk >= 0 {
			f(&c.Bulk, &c.Bytes)
			c.Bytes++
		}
	}
}

// Discard closes the descriptors.
func (k *Carried) Discard() {
	for i := range k.Conns {
		c := &k.Conns[i]
		for _, fd := range []*int{&c.FD, &c.Bulk} {
			if *fd >= 0 {
				unix.Close(*fd)
			}
			*fd = -1
		}
	}
}

// Carry returns what the connections are, with descriptors that are the caller's, and a line
// for each that stays behind. Preconditions: Rest.
func (s *Server) Carry() (k Carried, left []string, err error) {
	defer func() {
		if err != nil {
			k.Discard()
			k = Carried{}
		}
	}()
	clients := map[*blockio.Flusher]int{}
	conns, late := s.phases()
	for _, c := range conns {
		x := CarriedConnection{FD: -1, Bulk: -1, Export: c.exp.Name, Structured: c.agreed.structured, Allocation: c.agreed.allocation, Kernel: c.agreed.kernel}
		told := c.client.Told() // before: a flush that fails meanwhile is repeated, and must not be taken for told
		switch err := c.carry(&x); {
		case err == errLate:
			late++
			continue
		case err == errEnding:
			continue
		case err != nil:
			return k, nil, err
		}
		n, seen := clients[c.client]
		if !seen {
			n = len(k.Clients)
			clients[c.client] = n
			k.Clients = append(k.Clients, told)
		}
		x.Client = n
		k.Conns = append(k.Conns, x)
	}
	if late > 0 {
		left = append(left, english.Plural(late, "NBD connection", "")+" in the handshake")
	}
	return k, left, nil
}

// Connections that stay.
var (
	errEnding = errors.New("nbd: the connection is ending")
	errLate   = errors.New("nbd: the handshake has ended after Rest had seen who there is")
)

// carry fills x in, with descriptors only if it has no error.
func (c *conn) carry(x *CarriedConnection) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out.broken != nil || c.ending {
		return errEnding
	}
	if !c.stands || !c.out.mute || c.out.sending {
		return errLate // all others rest: nothing has been read from it
	}
	unread, replay := c.unreadLocked()
	unsent := c.out.unsentLocked()
	x.Unread, x.Unsent, x.Replay = total(unread), total(unsent), replay
	if x.Unread+x.Unsent > 0 {
		if x.Bulk, err = bulkFile(append(unread, unsent...)); err != nil {
			return err
		}
	}
	if x.FD, err = handover.Dup(c.nc.(syscall.Conn)); err != nil && x.Bulk >= 0 { // a socket, as newConn has found
		unix.Close(x.Bulk)
	}
	return err
}

// unreadLocked returns what the next process reads first: requests under way, once more, the one that has
// come in part, and what has been read ahead.
func (c *conn) unreadLocked() (all [][]byte, replay int) {
	free := map[*slot]bool{c.now.slot: true}
	for s := c.idle; s != nil; s = s.next {
		free[s] = true
	}
	for _, q := range []*replyQueue{&c.out.queue, &c.out.tx.queue, &c.out.tx.done} {
		for s := q.head; s != nil; s = s.next {
			free[s] = true
		}
	}
	for i := range c.slots {
		s := &c.slots[i]
		if free[s] {
			continue
		}
		replay++
		all = append(all, s.in.bytes())
		if s.in.cmd == CmdWrite {
			all = append(all, s.buf[:s.in.n])
		}
	}
	if in := c.now.in; c.now.within {
		var come []byte
		if in.cmd == CmdWrite {
			switch n := int(in.n) - c.rd.left; {
			case c.now.slot != nil:
				come = c.now.slot.buf[:n]
			case n > 0:
				// It is being refused, and what has come of its payload is gone: it must not be carried out
				// by a process that finds the volume grown, or has the memory.
				come = make([]byte, n)
				if c.now.errno == errNoSpace || c.now.errno == errNoMem {
					in.off = beyond
				}
			}
		}
		all = append(all, in.bytes(), come)
	}
	return append(all, c.rd.buf[c.rd.r:c.rd.w], c.rd.ahead), replay
}

// beyond is an offset that no volume reaches.
const beyond = 1 << 63

// unsentLocked returns what has not left.
func (o *replies) unsentLocked() (all [][]byte) {
	all = o.tx.rest()
	for s := o.queue.head; s != nil; s = s.next {
		all = append(all, s.head[:s.headN], s.body)
	}
	return all
}

// bytes is the request as it comes from a client.
func (r *request) bytes() []byte {
	be := binary.BigEndian
	p := be.AppendUint32(make([]byte, 0, requestSize), magicRequest)
	p = be.AppendUint16(be.AppendUint16(p, r.flags), uint16(r.cmd))
	p = be.AppendUint64(p, r.cookie)
	return be.AppendUint32(be.AppendUint64(p, r.off), r.n)
}

func total(all [][]byte) (n int) {
	for _, b := range all {
		n += len(b)
	}
	return n
}

// bulkFile is a file in memory that holds all.
func bulkFile(all [][]byte) (fd int, err error) {
	fd, err = unix.MemfdCreate("nbd", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("nbd: memory for what is under way: %w", err)
	}
	f := os.NewFile(uintptr(fd), "nbd")
	defer f.Close()
	for _, b := range all {
		if _, err := f.Write(b); err != nil {
			return -1, fmt.Errorf("nbd: memory for what is under way: %w", err)
		}
	}
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
}

// maxBulk bounds what comes with one connection: more than its buffers it cannot have.
func (s *Server) maxBulk() int { return 2*s.cfg.Memory + s.cfg.Depth*(64+requestSize) + 2*readAhead }

// Check says what is wrong with what another process has handed over, files descriptors of
// all kinds. Nothing is touched.
func (s *Server) Check(k *Carried, files int) error {
	if len(k.Conns) > s.cfg.MaxConns {
		return fmt.Errorf("nbd: %d connections; %d are the limit", len(k.Conns), s.cfg.MaxConns)
	}
	for i := range k.Conns {
		c := &k.Conns[i]
		bulk := c.Unread > 0 || c.Unsent > 0
		switch most := s.maxBulk(); {
		case s.export(c.Export) == nil:
			return fmt.Errorf("nbd: connection %d has the export %q, which there is not", i, c.Export)
		case c.Client < 0 || c.Client >= len(k.Clients):
			return fmt.Errorf("nbd: connection %d: there is no client %d", i, c.Client)
		case c.File < 0 || c.File >= files || bulk && (c.Bytes < 1 || c.Bytes > files):
			return fmt.Errorf("nbd: connection %d: no descriptor has come with it", i)
		case c.Unread < 0 || c.Unread > most || c.Unsent < 0 || c.Unsent > most:
			return fmt.Errorf("nbd: connection %d with %d bytes that came and %d that leave; %d is the limit", i, c.Unread, c.Unsent, most)
		case c.Replay < 0 || c.Replay > s.cfg.Depth:
			return fmt.Errorf("nbd: connection %d with %d requests under way; %d are the limit", i, c.Replay, s.cfg.Depth)
		}
	}
	return nil
}

// Prepared are connections of another process that this one can go on with.
type Prepared struct {
	srv   *Server
	conns []*conn
}

// Prepare makes connections of what Check has accepted, whose descriptors are closed. Their
// sockets are left alone until Begin.
func (s *Server) Prepare(k *Carried) (_ *Prepared, err error) {
	defer k.Discard()
	p := &Prepared{srv: s}
	defer func() {
		if err != nil {
			p.Discard()
		}
	}()
	var clients []*blockio.Flusher
	for range k.Clients {
		clients = append(clients, nil)
	}
	for i := range k.Conns {
		x := &k.Conns[i]
		if clients[x.Client] == nil {
			clients[x.Client] = s.export(x.Export).LUN.NewFlusher().Resume(k.Clients[x.Client])
		}
		c, err := s.restore(x, clients[x.Client])
		if err != nil {
			return nil, fmt.Errorf("nbd: connection %d: %w", i, err)
		}
		p.conns = append(p.conns, c)
	}
	return p, nil
}

// restore makes one connection.
func (s *Server) restore(k *CarriedConnection, client *blockio.Flusher) (*conn, error) {
	bulk := make([]byte, k.Unread+k.Unsent)
	if len(bulk) > 0 {
		if n, err := unix.Pread(k.Bulk, bulk, 0); err != nil || n < len(bulk) {
			return nil, fmt.Errorf("%d bytes have come with it, not %d: %w", n, len(bulk), err)
		}
	}
	f := os.NewFile(uintptr(k.FD), "handed over")
	k.FD = -1
	defer f.Close()
	nc, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	c, err := newConn(s, nc, agreed{export: s.export(k.Export), structured: k.Structured, allocation: k.Allocation, kernel: k.Kernel, client: client})
	if err != nil {
		nc.Close()
		return nil, err
	}
	c.rd.ahead = bulk[:k.Unread:k.Unread]
	if rest := bulk[k.Unread:]; len(rest) > 0 {
		first := c.idle
		c.idle = first.next
		first.headN = copy(first.head[:], rest)
		first.body = rest[first.headN:]
		c.out.queue.push(first)
	}
	return c, nil
}

// Begin serves the connections.
func (p *Prepared) Begin() {
	for _, c := range p.conns {
		if !p.srv.begin(c.nc) {
			c.nc.Close()
			continue
		}
		go func() {
			defer p.srv.end(c.nc)
			if err := p.srv.run(c); err != nil {
				p.srv.report(err)
			}
		}()
		c.out.wakeUp()
	}
	p.conns = nil
}

// Discard gives up what has not begun.
func (p *Prepared) Discard() {
	for _, c := range p.conns {
		c.nc.Close()
	}
	p.conns = nil
}
