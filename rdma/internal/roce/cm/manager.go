package cm

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"softiser/internal/peerorigin"
	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/verbs"
)

// Config describes a Manager.
type Config struct {
	Local netip.Addr // the address whose port 4791 it serves
	GUID  uint64     // of the channel adapter; see NewGUID
	// Send sends a MAD to queue pair 1 at an address, and keeps nothing of it. It must
	// not block, nor call the Manager; what it cannot send is lost, as on the network.
	Send   func(to netip.Addr, b []byte)
	Limits Limits
}

// Limits bound what peers can make a Manager hold. Zero fields mean the value beside
// them.
//
// A request costs one entry until its sender has shown, by an answer with the number
// that was sent to it, that it is where it says: an RTU or the first packet of the
// queue pair, within Answer of the application's answer and a few seconds more for the
// peer's. Requests beyond the limits are dropped, and come again.
type Limits struct {
	Pending        int           // such entries in all; 1024
	PendingPerPeer int           // such entries of one IPv4 address, or one IPv6 /64; 64
	TimeWait       int           // ended connections that are remembered; 4096
	Answer         time.Duration // within which the application accepts or rejects, or establishes; 30 s
}

func (l *Limits) defaults() {
	for _, f := range []struct {
		p *int
		v int
	}{{&l.Pending, 1024}, {&l.PendingPerPeer, 64}, {&l.TimeWait, 4096}} {
		if *f.p == 0 {
			*f.p = f.v
		}
	}
	if l.Answer == 0 {
		l.Answer = 30 * time.Second
	}
}

// remoteID is how a peer names a connection, remoteQP its end of one.
type (
	remoteID struct {
		peer netip.Addr
		guid uint64
		id   uint32
	}
	remoteQP struct {
		peer netip.Addr
		guid uint64
		qpn  uint32
	}
)

// Manager makes and ends the connections of one local address. Its methods may be
// called at any time, by anyone.
type Manager struct {
	cfg   Config
	newID func() uint32 // tests choose the numbers

	mu        sync.Mutex // guards everything below, and all of Conn and Listener
	closed    bool
	conns     map[uint32]*Conn // by local communication ID, in every state but Idle and Gone
	byID      map[remoteID]*Conn
	byQP      map[remoteQP]*Conn
	pending   int
	perPeer   map[netip.Prefix]int
	timeWaits []*Conn // in the order in which they ended; some are Gone
	listeners map[mad.ServiceID]*Listener
	services  map[mad.ServiceID]func(*Lookup) LookupAnswer
	lookups   map[uint32]*lookup
	tid       uint64 // high half of transaction IDs
	stats     Stats

	calls   []func() // of hooks; see unlock
	calling bool
}

// New makes a Manager.
func New(cfg Config) *Manager {
	cfg.Local = plain(cfg.Local)
	cfg.Limits.defaults()
	return &Manager{
		cfg: cfg, newID: random32, tid: uint64(random32()) << 32,
		conns: map[uint32]*Conn{}, byID: map[remoteID]*Conn{}, byQP: map[remoteQP]*Conn{}, perPeer: map[netip.Prefix]int{},
		listeners: map[mad.ServiceID]*Listener{}, services: map[mad.ServiceID]func(*Lookup) LookupAnswer{}, lookups: map[uint32]*lookup{},
	}
}

// Close ends everything: peers are told once and not waited for, and every Conn is
// Gone when it returns.
func (m *Manager) Close() {
	m.mu.Lock()
	defer m.unlock()
	m.closed = true
	for _, l := range m.listeners {
		l.closeLocked()
	}
	for _, q := range m.lookups {
		q.endLocked(nil, errManagerClosed)
	}
	for _, c := range m.conns {
		c.closeLocked()
	}
}

var errManagerClosed = fmt.Errorf("%w: connection manager", verbs.ErrClosed)

// unlock ends a critical section and then makes the hook calls that were queued in it:
// outside of the lock, in order, one at a time in the whole Manager.
func (m *Manager) unlock() {
	if m.calling {
		m.mu.Unlock()
		return // whoever is calling finds them
	}
	m.calling = true
	for len(m.calls) > 0 {
		calls := m.calls
		m.calls = nil
		m.mu.Unlock()
		for _, f := range calls {
			f()
		}
		m.mu.Lock()
	}
	m.calling = false
	m.mu.Unlock()
}

func (m *Manager) call(f func()) {
	if f != nil {
		m.calls = append(m.calls, f)
	}
}

// Receive takes a MAD that has come from an address, and keeps nothing of b.
func (m *Manager) Receive(from netip.Addr, b []byte) {
	tid, msg, err := mad.Parse(b)
	m.mu.Lock()
	defer m.unlock()
	if m.closed {
		return
	}
	if err != nil {
		m.stats.Malformed++
		return
	}
	m.stats.Received[msg.Attr()-mad.AttrREQ]++
	in := origin{plain(from), from, tid}
	switch msg := msg.(type) {
	case *mad.REQ:
		m.req(in, msg)
	case *mad.REP:
		m.rep(in, msg)
	case *mad.RTU:
		m.rtu(in, msg)
	case *mad.REJ:
		m.rej(in, msg)
	case *mad.MRA:
		m.mra(in, msg)
	case *mad.DREQ:
		m.dreq(in, msg)
	case *mad.DREP:
		m.drep(in, msg)
	case *mad.SIDRREQ:
		m.sidrReq(in, msg)
	case *mad.SIDRREP:
		m.sidrRep(in, msg)
	}
}

// origin is where a message came from.
type origin struct {
	peer netip.Addr // to compare
	to   netip.Addr // to answer, with its zone
	tid  uint64     // which its answer carries too
}

// plain is an address in its one form: no zone, no IPv4 in IPv6.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// send sends a message, and returns it for repetition.
func (m *Manager) send(to netip.Addr, tid uint64, msg mad.Message) []byte {
	b := mad.Append(make([]byte, 0, mad.Len), tid, msg)
	m.stats.Sent[msg.Attr()-mad.AttrREQ]++
	m.cfg.Send(to, b)
	return b
}

// sendAgain sends what has been sent before.
func (m *Manager) sendAgain(to netip.Addr, a mad.Attr, b []byte) {
	m.stats.Sent[a-mad.AttrREQ]++
	m.cfg.Send(to, b)
}

// find is the connection that an answer belongs to: the number that was chosen for it
// at random, and the address, must be right; nil otherwise.
func (m *Manager) find(in origin, id uint32) *Conn {
	c := m.conns[id]
	if c == nil || c.peer != in.peer {
		m.stats.Unmatched++
		return nil
	}
	return c
}

// register gives a new connection its number.
func (m *Manager) register(c *Conn) {
	for {
		c.id = m.newID()
		if _, used := m.conns[c.id]; !used && c.id != 0 {
			m.conns[c.id] = c
			return
		}
	}
}

// pendingMore counts one more request of peer, if there may be one.
func (m *Manager) pendingMore(peer netip.Addr) bool {
	from := peerorigin.Of(peer)
	if m.pending >= m.cfg.Limits.Pending || m.perPeer[from] >= m.cfg.Limits.PendingPerPeer {
		m.stats.Full++
		return false
	}
	m.pending++
	m.perPeer[from]++
	return true
}

func (m *Manager) pendingLess(c *Conn) {
	from := peerorigin.Of(c.peer)
	m.pending--
	if m.perPeer[from]--; m.perPeer[from] == 0 {
		delete(m.perPeer, from)
	}
}
