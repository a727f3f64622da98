// Package redial paces the attempts to reach a peer that has gone, so that one that is back
// within seconds is found at once. TCP repeats a SYN that nobody answers after 1, 3 and 7
// seconds; here an attempt is given up earlier, and the next begins with a SYN of its own.
package redial

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

const (
	// quick is how long an attempt waits for TCP, and the longest pause after it, while the
	// peer has not been away for longer than soon.
	quick = 200 * time.Millisecond
	soon  = 5 * time.Second
	// breath is the longest pause after an attempt that TCP has given up: a SYN that waits for
	// the address to be resolved is on its way as soon as that is there.
	breath = 20 * time.Millisecond
	// patience is how many times as long as the quickest handshake one is waited for at least.
	patience = 4
)

// Pace is that of one session. The zero value is ready, and bounds nothing; it is not safe
// for concurrent use.
type Pace struct {
	down     time.Duration // at the attempt that is made
	quickest time.Duration // handshake; 0: there was none
}

// Attempt begins one, down after the loss of the session. 0 is the first connection, which
// may take as long as its caller allows.
func (p *Pace) Attempt(down time.Duration) { p.down = down }

// Limit returns how long TCP may take to connect to addr in this attempt; 0: as long as it
// takes. A peer that stays away is left more and more time; a name that has to be looked up,
// and may have several addresses, is left all of it.
func (p *Pace) Limit(addr string) time.Duration {
	if _, err := netip.ParseAddrPort(addr); err != nil || p.down <= 0 {
		return 0
	}
	return max(quick, patience*p.quickest, p.down-soon)
}

// Dial connects with d, whose own Timeout holds where it is shorter.
func (p *Pace) Dial(ctx context.Context, d net.Dialer, addr string) (net.Conn, error) {
	if limit := p.Limit(addr); limit > 0 && (d.Timeout == 0 || limit < d.Timeout) {
		d.Timeout = limit
	}
	begin := time.Now()
	nc, err := d.DialContext(ctx, "tcp", addr)
	if took := time.Since(begin); err == nil && (p.quickest == 0 || took < p.quickest) {
		p.quickest = took
	}
	return nc, err
}

// Next returns the pause before the next attempt, of which wait is the longest, after one
// that has ended with err: short where TCP has waited in vain, and for a while where it has
// found nobody, which costs nobody anything.
func (p *Pace) Next(err error, wait time.Duration) time.Duration {
	op, ok := errors.AsType[*net.OpError](err)
	switch {
	case !ok || op.Op != "dial":
		return wait
	case op.Timeout():
		return min(wait, breath)
	case p.down < soon:
		return min(wait, quick)
	}
	return wait
}
