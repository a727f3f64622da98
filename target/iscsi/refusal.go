package iscsi

import (
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"softiser/target/internal/loglimit"
)

// refusal is why a login is refused, as metrics and logs tell it. An initiator learns
// less: only the status, which hides from it what it is not to know.
type refusal uint8

const (
	refusedNegotiation refusal = iota // a key, a stage or a PDU that login does not allow
	refusedSecret                     // CHAP failed, or was not offered
	refusedAccess                     // by the access list
	refusedNoTarget                   // no such target here, or not any more
	refusedRedirected
	refusedConnection // it does not fit into the session that it names
	refusedNoRoom     // limits
	refusedUnavailable
	refusedInternal
	refusalKinds
)

// String is the value of the metric's label.
func (r refusal) String() string {
	return [...]string{"negotiation", "authentication", "access_list", "no_such_target", "redirected", "connection", "limits", "unavailable", "internal"}[r]
}

// refusals counts refused logins by reason and logs them. Of each reason a burst is told
// line by line; what a flood leaves out is counted, and the count is told however it ends.
type refusals struct {
	log   *zap.Logger
	kinds [refusalKinds]struct {
		count atomic.Uint64
		lines loglimit.Limit
	}

	mu      sync.Mutex
	timer   *time.Timer // guarded by mu: tells what was left out; nil: nothing was
	stopped bool        // guarded by mu
}

const (
	refusalBurst   = 16          // lines of one reason at once
	refusalEvery   = time.Second // and then one in so long
	refusalSummary = 10 * time.Second
)

func (r *refusals) init(log *zap.Logger) {
	r.log = log
	for i := range r.kinds {
		r.kinds[i].lines.Every, r.kinds[i].lines.Burst = refusalEvery, refusalBurst
	}
}

// note counts a refusal and logs it.
func (r *refusals) note(log *zap.Logger, why refusal, fields ...zap.Field) {
	k := &r.kinds[why]
	k.count.Add(1)
	if k.lines.Warn(log, "login refused", append(fields, zap.Stringer("kind", why))...) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer == nil && !r.stopped {
		r.timer = time.AfterFunc(refusalSummary, r.summarise)
	}
}

// summarise logs how many refusals have had no line of their own.
func (r *refusals) summarise() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = nil
	if r.stopped {
		return
	}
	r.summariseLocked()
}

func (r *refusals) summariseLocked() {
	for i := range r.kinds {
		if n := r.kinds[i].lines.TakeDropped(); n > 0 {
			r.log.Warn("logins refused without a line of their own", zap.Stringer("kind", refusal(i)), zap.Int("count", n))
		}
	}
}

// stop tells what is left to tell.
func (r *refusals) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
	}
	r.stopped = true
	r.summariseLocked()
}

// counts returns how many logins were refused, in all and by reason.
func (r *refusals) counts() (total uint64, by map[string]uint64) {
	by = make(map[string]uint64, refusalKinds)
	for i := range r.kinds {
		n := r.kinds[i].count.Load()
		by[refusal(i).String()] = n
		total += n
	}
	return total, by
}

func peerText(key, text string) zap.Field { return loglimit.PeerText(key, text) }
