package dhchap

import (
	"crypto/hmac"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"

	"softiser/internal/fsm"
)

// ctrlState is where a controller's side is.
//
//	expectNegotiate ──Send──▶ offerChallenge ──Receive──▶ expectReply ──Send──▶ offerSuccess1
//	                                                                                │ Receive
//	                                      done ◀──Send── expectSuccess2 ◀───────────┤
//	                                        ▲                                       │ nothing to prove
//	                                        └───────────────────────────────────────┘
//
// A breach leads to offerFailure, and from there to failed.
type ctrlState uint8

const (
	expectNegotiate ctrlState = iota
	offerChallenge
	expectReply
	offerSuccess1
	expectSuccess2
	done
	offerFailure
	failed
)

// nextStates is the drawing as a table: a breach may come in each, and the host may say at any
// time that it gives up.
var nextStates = fsm.Of([][]ctrlState{
	expectNegotiate: {offerChallenge, offerFailure, failed},
	offerChallenge:  {expectReply, offerFailure, failed},
	expectReply:     {offerSuccess1, offerFailure, failed},
	offerSuccess1:   {done, expectSuccess2, offerFailure, failed},
	expectSuccess2:  {done, offerFailure, failed},
	done:            {offerFailure, failed},
	offerFailure:    {failed},
	failed:          {offerFailure},
})

// to is the only writer of the state; to stay is no transition. One that the table does not
// have is a mistake of ours, and proves nothing: the authentication has failed.
func (c *Controller) to(s ctrlState) {
	if c.state != s && !nextStates.Has(c.state, s) {
		err := fsm.Illegal("dhchap", "a controller", c.state, s)
		c.err, s = &Error{Reason: Failed, Err: err}, failed
	}
	c.state = s
}

// Controller is the controller's side of the authentication of one queue. It is
// not safe for concurrent use.
type Controller struct {
	cfg   Config
	state ctrlState
	err   *Error

	tid      uint16
	concat   uint8
	offer    challenge
	exchange *exchange
	powers   int
	r2       []byte // nil: the host did not ask for it
}

// NewController returns a controller that waits for AUTH_Negotiate.
func NewController(c Config) *Controller { return &Controller{cfg: c} }

// String says what the authentication is done with.
func (c *Controller) String() string {
	who := "the host"
	if c.r2 != nil {
		who = "both"
	}
	return fmt.Sprintf("%s, %s, %s", c.offer.hash, c.offer.group, who)
}

// Done reports whether the host has proved who it is, and has accepted the
// controller's proof if it asked for one.
func (c *Controller) Done() bool { return c.state == done }

// Powers returns how many powers modulo a prime have been computed: two at most.
func (c *Controller) Powers() int { return c.powers }

// Failed returns why the authentication has failed and the host has been told;
// nil if it has not.
func (c *Controller) Failed() *Error {
	if c.state != failed {
		return nil
	}
	return c.err
}

func (c *Controller) fail(e *Error) {
	c.err = e
	c.to(offerFailure)
}

// Send takes a message of the host, the data of Authentication Send. What is wrong
// with it the host is told by the next [Controller.Receive]. An error means that
// no message was expected.
func (c *Controller) Send(b []byte) error {
	m, tid, e := kind(b)
	if e != nil {
		c.fail(e)
		return nil
	}
	if c.state != expectNegotiate && tid != c.tid {
		c.fail(failf(BadPayload, "transaction %d in the midst of %d", tid, c.tid))
		return nil
	}
	if m == msgFailure2 {
		c.err = &Error{Reason: Reason(b[7]), Peer: true}
		c.to(failed)
		return nil
	}
	switch {
	case c.state == expectNegotiate && m == msgNegotiate:
		c.tid = tid
		e = c.negotiate(b)
	case c.state == expectReply && m == msgReply:
		e = c.reply(b)
	case c.state == expectSuccess2 && m == msgSuccess2:
		c.to(done)
	case c.state >= done:
		return failf(BadMessage, "%s after the end", m)
	default:
		e = failf(BadMessage, "unexpected %s", m)
	}
	if e != nil {
		c.fail(e)
	}
	return nil
}

// negotiate chooses hash and group, and makes the challenge.
func (c *Controller) negotiate(b []byte) *Error {
	n, e := parseNegotiate(b)
	if e != nil {
		return e
	}
	if c.concat = n.concat; n.concat != noConcat {
		return failf(ConcatMismatch, "secure channel concatenation %d is asked for", n.concat)
	}
	h, ok := choose(c.cfg.hashes(), n.hashes)
	if !ok {
		return failf(HashUnusable, "the host offers %v, %v may be used", n.hashes, c.cfg.hashes())
	}
	g, ok := choose(c.cfg.groups(), n.groups)
	if !ok {
		return failf(GroupUnusable, "the host offers %v, %v may be used", n.groups, c.cfg.groups())
	}
	if g != GroupNone {
		c.powers++
	}
	x, err := g.begin()
	if err != nil {
		return &Error{Reason: Failed, Err: err}
	}
	c.exchange = x
	c.offer = challenge{hash: h, group: g, seq: sequence(), c1: random(h.Size()), public: x.public}
	c.to(offerChallenge)
	return nil
}

// reply checks the host's proof.
func (c *Controller) reply(b []byte) *Error {
	h := c.offer.hash
	r, e := parseReply(b, h, c.offer.group)
	if e != nil {
		return e
	}
	if c.offer.group != GroupNone {
		c.powers++
	}
	shared, err := c.exchange.shared(r.public)
	if err != nil {
		return &Error{Reason: BadPayload, Err: err}
	}
	want := c.cfg.r1(question{hash: h, c: h.augment(c.offer.c1, shared), seq: c.offer.seq, tid: c.tid, concat: c.concat})
	if !hmac.Equal(want, r.r1) {
		return &Error{Reason: Failed}
	}
	if r.c2 != nil {
		if c.cfg.Controller == nil {
			return failf(Failed, "the host wants a proof, and there is no secret for it")
		}
		// A challenge sent back would make the controller answer its own question.
		if slices.Equal(r.c2, c.offer.c1) {
			return failf(BadPayload, "the host returns the challenge")
		}
		c.r2 = c.cfg.r2(question{hash: h, c: h.augment(r.c2, shared), seq: r.seq, tid: c.tid})
	}
	c.to(offerSuccess1)
	return nil
}

// Receive returns the controller's next message, the data of Authentication
// Receive; an error means that it is the host's turn.
func (c *Controller) Receive() ([]byte, error) {
	switch c.state {
	case offerChallenge:
		c.to(expectReply)
		return c.offer.encode(c.tid), nil
	case offerSuccess1:
		if c.r2 != nil {
			c.to(expectSuccess2)
		} else {
			c.to(done)
		}
		return success1(c.tid, c.offer.hash, c.r2), nil
	case offerFailure:
		c.to(failed)
		return failure(msgFailure1, c.tid, c.err.Reason), nil
	}
	return nil, failf(BadMessage, "no message is due")
}

// random returns n random bytes.
func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

// sequence returns a sequence number, which is never 0.
func sequence() uint32 {
	for {
		if n := binary.LittleEndian.Uint32(random(4)); n != 0 {
			return n
		}
	}
}
