package dhchap

import (
	"crypto/hmac"
	"slices"
)

// Host is the host's side of the authentication of one queue: Negotiate, then
// each message of the controller in turn. It is not safe for concurrent use.
type Host struct {
	cfg      Config
	tid      uint16
	hash     Hash
	want     []byte // R2; nil: the controller need not prove anything
	answered bool   // a Reply has been made
}

// NewHost returns a host whose messages have transaction identifier tid.
func NewHost(c Config, tid uint16) *Host { return &Host{cfg: c, tid: tid} }

// Negotiate returns the first message.
func (h *Host) Negotiate() []byte {
	n := negotiate{hashes: h.cfg.hashes(), groups: h.cfg.groups()}
	return n.encode(h.tid)
}

// Handle takes a message of the controller and returns the host's next one, nil
// for none, and whether the authentication has ended well. After an error, what is
// returned tells the controller.
func (h *Host) Handle(b []byte) (next []byte, ok bool, err error) {
	next, ok, e := h.handle(b)
	if e == nil {
		return next, ok, nil
	}
	if !e.Peer {
		next = failure(msgFailure2, h.tid, e.Reason)
	}
	return next, false, e
}

func (h *Host) handle(b []byte) ([]byte, bool, *Error) {
	m, tid, e := kind(b)
	switch {
	case e != nil:
		return nil, false, e
	case m == msgFailure1:
		return nil, false, &Error{Reason: Reason(b[7]), Peer: true}
	case tid != h.tid:
		return nil, false, failf(BadPayload, "transaction %d in the midst of %d", tid, h.tid)
	case m == msgChallenge && !h.answered:
		next, e := h.challenge(b)
		return next, false, e
	case m == msgSuccess1 && h.answered:
		return h.success(b)
	}
	return nil, false, failf(BadMessage, "unexpected %s", m)
}

// challenge answers the controller's challenge, and makes one if the controller
// has to prove who it is.
func (h *Host) challenge(b []byte) ([]byte, *Error) {
	c, e := parseChallenge(b)
	if e != nil {
		return nil, e
	}
	if e = h.cfg.mayUse(c.hash, c.group); e != nil {
		return nil, e
	}
	x, err := c.group.begin()
	if err != nil {
		return nil, &Error{Reason: Failed, Err: err}
	}
	shared, err := x.shared(c.public)
	if err != nil {
		return nil, &Error{Reason: BadPayload, Err: err}
	}
	h.hash, h.answered = c.hash, true
	r := reply{public: x.public}
	r.r1 = h.cfg.r1(question{hash: c.hash, c: c.hash.augment(c.c1, shared), seq: c.seq, tid: h.tid, concat: noConcat})
	if h.cfg.Controller != nil {
		for r.c2 = random(c.hash.Size()); slices.Equal(r.c2, c.c1); {
			r.c2 = random(c.hash.Size())
		}
		r.seq = sequence()
		h.want = h.cfg.r2(question{hash: c.hash, c: c.hash.augment(r.c2, shared), seq: r.seq, tid: h.tid})
	}
	return r.encode(h.tid), nil
}

// success checks the controller's proof.
func (h *Host) success(b []byte) ([]byte, bool, *Error) {
	r2, e := parseSuccess1(b, h.hash)
	if e != nil {
		return nil, false, e
	}
	if h.want == nil {
		return nil, true, nil
	}
	if r2 == nil || !hmac.Equal(r2, h.want) {
		return nil, false, failf(Failed, "the controller does not know its secret")
	}
	return header(msgSuccess2, h.tid, fixedLen), true, nil
}
