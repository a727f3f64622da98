package nvmf

import (
	"sync/atomic"
	"time"
)

// pulse is the time of an association, as exactly as its time-outs are kept (see tick), and what
// stands for a Keep Alive: the answer to a command that was sent after the last one.
//
// The keeper beats; sends and completions, of any goroutine, look at it by an atomic each.
type pulse struct {
	start time.Time
	now   atomic.Int64 // time since start, ns, as of the last tick
	beat  atomic.Int64 // now, as of the last Keep Alive or what stood for it
	heard atomic.Bool  // a command that has been sent since then was answered
}

// age is the exact time since start.
func (p *pulse) age() time.Duration { return time.Since(p.start) }

// tick brings now up to date.
func (p *pulse) tick() { p.now.Store(int64(p.age())) }

// begin begins the time in which an answer stands for a Keep Alive.
func (p *pulse) begin() {
	p.beat.Store(p.now.Load()) // first: what is answered from now on was sent since, or does not count
	p.heard.Store(false)
}

// answered takes note of the answer to a command that was sent at that time (now, then).
func (p *pulse) answered(sentAt int64) {
	if sentAt >= p.beat.Load() {
		p.heard.Store(true)
	}
}
