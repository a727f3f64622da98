package volume

import "errors"

// A process that hands its volumes over has their rewrites stand still between two steps. Where one
// stands goes to the next process, where it goes on; or it goes on here as if nothing had happened. What initiators ask for meanwhile is told as at any other time.
//
//	runs ──held──▶ rests ──released──▶ runs
//	                └─ the volume is closed: it ends

// pause is the part of a task set that keeps a rewrite from going on. Tasks.mu guards it.
type pause struct {
	held    chan struct{} // closed when rewrites may go on; nil: they may
	changed chan struct{} // of capacity 1: one rests or has ended, while they are held
	resting bool          // one stands between two steps
	at      Rewrite       // where, if it rests
	current *Outcome      // of the rewrite that runs or was the last one; nil: there was none
}

// hold keeps rewrites from going on.
func (s *Tasks) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pause.held == nil {
		s.pause.held, s.pause.changed = make(chan struct{}), make(chan struct{}, 1)
	}
}

// releaseLocked ends what hold has begun.
func (s *Tasks) releaseLocked() {
	if s.pause.held != nil {
		close(s.pause.held)
		s.pause.held = nil
	}
}

// rests reports whether no rewrite runs, but for one that stands still.
func (s *Tasks) rests() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.pause
	return p.resting || p.current == nil || p.current.over
}

// awaited reports whether a command waits for the end of the rewrite.
func (s *Tasks) awaited() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.pause
	return p.current != nil && p.current.waiter != nil
}

// Why rewrites cannot stand still, or not for another process.
var (
	errRewriting = errors.New("a format or a sanitize has not come to rest")
	errAwaited   = errors.New("a command waits for the end of a format or a sanitize; wait for it")
)

// carriedRewrites is what has become of the rewrites of a volume.
type carriedRewrites struct {
	// Now is the rewrite that stands still, or has failed, as the gates tell; nil: there is none.
	Now       *Rewrite `json:"now,omitempty"`
	Sanitized *Rewrite `json:"sanitized,omitempty"` // see Rewriter
	Erased    bool     `json:"erased,omitempty"`    // see medium
}

// carry returns what has become of the rewrites. Preconditions: the volume is frozen.
func (z *Rewriter) carry() (*carriedRewrites, error) {
	var k carriedRewrites
	k.Erased = z.vol.erased.Load()
	z.vol.mu.Lock()
	at, resting := z.vol.pause.at, z.vol.pause.resting
	z.vol.mu.Unlock()
	z.mu.Lock()
	defer z.mu.Unlock()
	k.Sanitized = z.sanitized
	switch {
	case resting:
		k.Now = &at
	case z.vol.Gates()&(Sanitizing|Formatting) != 0: // what a restart has interrupted, and nobody has started
		return nil, errRewriting
	case z.vol.Gates()&(SanitizeFailed|Corrupt) != 0:
		failed := z.now
		failed.Failed = true
		k.Now = &failed
	}
	return &k, nil
}

// check says what no process of ours has carried.
func (k *carriedRewrites) check() error {
	if k != nil && (k.Now != nil && !k.Now.valid() || k.Sanitized != nil && !k.Sanitized.valid()) {
		return errors.New("the rewrite that was handed over is none of this program's")
	}
	return nil
}

// goOn puts in force what another process has carried, in the place of what was restored from
// files. What runs is begun by Place.Start, and held until Registry.Thaw.
func (z *Rewriter) goOn(k *carriedRewrites) {
	z.vol.SetGate(Sanitizing|SanitizeFailed|Formatting|Corrupt, false)
	z.vol.hasErased(k.Erased)
	z.mu.Lock()
	defer z.mu.Unlock()
	z.sanitized = k.Sanitized
	if k.Now == nil || z.vol.dev == nil {
		return
	}
	k.Now.Offset = k.Now.Offset >> z.vol.Geo().Shift << z.vol.Geo().Shift
	z.put(k.Now)
}
