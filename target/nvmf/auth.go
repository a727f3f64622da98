package nvmf

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"

	"softiser/internal/nvme"
	"softiser/internal/nvme/dhchap"
	"softiser/internal/peerorigin"
	"softiser/target/internal/loglimit"
)

// authentication is DH-HMAC-CHAP on one queue. The first one comes between Connect and
// every other command; the host may ask for another whenever it likes.
//
//	Connect ──▶ unproved ──Success──▶ proved ──AUTH_Negotiate──▶ proved, under way …
//	               └─ failure, time ─▶ closed ◀─ failure, time ─────┘
//
// What the host sends is looked at by the front end's workers, because it makes the
// controller compute powers modulo a prime.
type authentication struct {
	sub    *subsystem
	subNQN string // as the host calls it
	host   string

	mu    sync.Mutex
	m     *dhchap.Controller // guarded by mu: under way; nil: none
	busy  bool               // guarded by mu: a worker has m
	timer *time.Timer        // guarded by mu: of one that is not the first
}

// maxAuth bounds the messages of both sides. The longest is a reply with two hashes and a
// public value of 8192 bits, 1168 bytes; Linux offers room for 4096.
const maxAuth = 4096

var (
	errNotProved = errors.New("DH-HMAC-CHAP: the authentication has taken too long")
	errNotJoined = errors.New("DH-HMAC-CHAP: meanwhile the controller has ended, or has got another queue of that number")
)

// hostKeys are the secrets of a host.
type hostKeys struct {
	host, ctrl *dhchap.Secret
	allowed    dhchap.Allowed
}

// keys returns what a host has to prove itself with; nil: nothing. Every rule with its
// name counts, so that no wider rule lets it in without.
func (s *subsystem) keys(host string) *hostKeys {
	for _, r := range s.hostRules() {
		if r.Secret != nil && r.NQN == host {
			return &hostKeys{r.Secret, r.CtrlSecret, r.Proof}
		}
	}
	return nil
}

// keys is that of a subsystem. The discovery service wants the proof that a host owes any
// subsystem: it shows the host what nobody else may see.
func (f *Frontend) keys(s *subsystem, host string) *hostKeys {
	if s.kind != nvme.TypeDiscovery {
		return s.keys(host)
	}
	for _, o := range f.list() {
		if k := o.keys(host); k != nil {
			return k
		}
	}
	return nil
}

// authenticate makes the queue ask its host for a proof, if there is a secret for it, and
// reports whether it does.
func (q *queue) authenticate(s *subsystem, d *nvme.ConnectData) bool {
	if q.fe.keys(s, d.Host) == nil {
		q.auth = nil
		return false
	}
	q.auth = &authentication{sub: s, subNQN: d.Subsystem, host: d.Host}
	return true
}

// authRequest is a request with Authentication Send or Receive.
type authRequest struct{ *request }

// valid checks what Authentication Send and Receive have in common.
func (r authRequest) valid() bool {
	c := r.sqe().Auth()
	n, s := r.hostData()
	switch {
	case r.q.auth == nil:
		s = nvme.InvalidOpcode | nvme.DoNotRetry
	case s != nvme.Success:
	case !c.Valid() || c.Length() == 0 || c.Length() > maxAuth && r.sqe().FromHost():
		s = nvme.InvalidField | nvme.DoNotRetry
	case n != c.Length():
		s = nvme.SGLDataLengthInvalid | nvme.DoNotRetry
	}
	if s != nvme.Success {
		r.end(s)
		return false
	}
	return true
}

// send is Authentication Send: a message of the host.
func (r authRequest) send() {
	if r.valid() {
		r.param(int(r.sqe().Auth().Length()), func(r *request) { authRequest{r}.sent() })
	}
}

// sent goes on when the message is there.
func (r authRequest) sent() {
	q, a := r.q, r.q.auth
	m := a.take(q)
	if m == nil {
		r.end(nvme.CommandSequenceError | nvme.DoNotRetry)
		return
	}
	q.fe.proofs.Do(peerorigin.Of(q.conn.Remote.Addr()), func() {
		s := nvme.AbortRequested
		if !q.isOver() {
			n := m.Powers()
			s = a.heard(q, m, m.Send(r.params))
			q.fe.powers.Add(uint64(m.Powers() - n))
		}
		a.mu.Lock()
		a.busy = false
		a.mu.Unlock()
		r.end(s)
		q.Push()
	})
}

// take gives a worker the authentication that is under way, or a new one; nil: another
// message of the host is being looked at, or no secret is left.
func (a *authentication) take(q *queue) *dhchap.Controller {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busy {
		return nil
	}
	if a.m == nil {
		k := q.fe.keys(a.sub, a.host)
		if k == nil {
			return nil
		}
		a.m = dhchap.NewController(dhchap.Config{HostNQN: a.host, SubsystemNQN: a.subNQN, Host: k.host, Controller: k.ctrl, Allowed: k.allowed})
		if q.proved.Load() {
			a.timer = time.AfterFunc(q.fe.cfg.Timeouts.Connect, func() { q.t.Terminate(errNotProved) })
		}
	}
	a.busy = true
	return a.m
}

// heard goes on after a message of the host, and says how its command ends.
func (a *authentication) heard(q *queue, m *dhchap.Controller, err error) nvme.Status {
	if err != nil {
		return nvme.CommandSequenceError | nvme.DoNotRetry
	}
	if e := m.Failed(); e != nil {
		q.notProved(e)
	}
	if m.Done() { // Success2
		return a.succeed(q, m)
	}
	return nvme.Success
}

// receive is Authentication Receive: the host takes the controller's message.
func (r authRequest) receive() {
	if !r.valid() {
		return
	}
	q, a := r.q, r.q.auth
	a.mu.Lock()
	m := a.m
	if a.busy {
		m = nil
	}
	a.mu.Unlock()
	if m == nil {
		r.end(nvme.CommandSequenceError | nvme.DoNotRetry)
		return
	}
	b, err := m.Receive()
	if err != nil {
		r.end(nvme.CommandSequenceError | nvme.DoNotRetry)
		return
	}
	n := int(min(r.sqe().Auth().Length(), maxAuth))
	if len(b) > n {
		q.notProved(errors.New("DH-HMAC-CHAP: the host has no room for the controller's message"))
		r.end(nvme.InvalidField | nvme.DoNotRetry)
		return
	}
	if e := m.Failed(); e != nil {
		q.notProved(e)
	}
	if m.Done() {
		if s := a.succeed(q, m); s != nvme.Success {
			r.end(s)
			return
		}
	}
	if !r.getBuf(n) {
		q.notProved(errors.New("DH-HMAC-CHAP: there is no memory for a message"))
		r.end(nvme.CommandInterrupted)
		return
	}
	copy(r.buf, b)
	r.reply(r.buf)
}

// succeed lets the host in: from now on its commands are served.
func (a *authentication) succeed(q *queue, m *dhchap.Controller) nvme.Status {
	a.mu.Lock()
	a.m = nil
	if a.timer != nil {
		a.timer.Stop()
	}
	a.mu.Unlock()
	if q.proved.Load() {
		q.ctrl.hasProved(m.String())
		q.fe.proved.Add(1)
		return nvme.Success
	}
	// Only now that the host has proved who it is: before, anybody who uses its name could take its queues.
	if q.id != 0 && q.ctrl.join(q, q.id) != nvme.Success {
		q.notProved(errNotJoined)
		return nvme.CommandSequenceError | nvme.DoNotRetry
	}
	q.memory.proved(a.host)
	if q.id == 0 {
		if err := q.ctrl.seat.proved(q.memory); err != nil {
			q.fe.lines.refused.Info(q.log, "NVMe: a host that has proved who it is gets no controller", loglimit.PeerText("host", a.host), zap.Error(err))
			q.fail()
			return nvme.CommandInterrupted
		}
	}
	q.fe.proved.Add(1)
	q.ctrl.hasProved(m.String())
	q.fe.lines.hosts.Info(q.ctrl.zlog, "NVMe: the host has proved who it is", q.ctrl.named(), zap.Uint16("queue", q.id), zap.Stringer("with", m))
	q.letIn()
	return nvme.Success
}

// notProved closes the connection behind what it has to answer.
func (q *queue) notProved(why error) {
	q.fe.notProved.Add(1)
	q.ctrl.proofs.failed.Add(1)
	q.fe.lines.proof.Info(q.log, "NVMe: the host has not proved who it is", loglimit.PeerText("host", q.auth.host), zap.String("subsystem", q.auth.subNQN),
		zap.Uint16("queue", q.id), zap.Error(why))
	q.fail()
}

// end stops what waits for the host.
func (a *authentication) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer != nil {
		a.timer.Stop()
	}
}

// letIn has the commands of the queue served.
func (q *queue) letIn() {
	q.proved.Store(true)
	q.connected()
}

// Authentications are counts of DH-HMAC-CHAP on queues.
type Authentications struct {
	Succeeded, Failed uint64
	// Powers modulo a prime is what they have cost; that is a millisecond and more for each.
	Powers uint64
	// AtOnce is how many messages of hosts were looked at at the same time, at most, and
	// Workers how many may be.
	AtOnce, Workers int
}

// Authentications returns the counts.
func (f *Frontend) Authentications() Authentications {
	s := f.proofs.Stats()
	return Authentications{f.proved.Load(), f.notProved.Load(), f.powers.Load(), s.Most, s.Workers}
}

// SetHosts changes who may connect to a subsystem, with which secrets, and whether through
// TLS: from the next Connect and authentication on.
func (f *Frontend) SetHosts(nqn string, hosts []HostRule, channel SecureChannel) error {
	if err := checkHosts(nqn, hosts); err != nil {
		return err
	}
	for _, s := range f.list() {
		if s.cfg.NQN == nqn {
			s.mu.Lock()
			s.hosts, s.channel = hosts, channel
			s.mu.Unlock()
			f.discoveryChanged()
			return nil
		}
	}
	return noSubsystem(nqn)
}

func (s *subsystem) hostRules() []HostRule {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hosts
}

// admits reports whether a host may connect.
func (s *subsystem) admits(host string, from netip.Addr) bool {
	rules := s.hostRules()
	if len(rules) == 0 {
		return true
	}
	for i := range rules {
		if rules[i].admits(host, from) {
			return true
		}
	}
	return false
}
