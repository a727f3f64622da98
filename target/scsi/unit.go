package scsi

import (
	"slices"
	"sync"
	"time"

	"softiser/internal/spc"

	"softiser/target/volume"
)

// unit is what SCSI keeps about a volume once, at however many LUNs of however many
// targets it is served: these are one logical unit, as initiators tell by its
// designators.
type unit struct {
	vol      *volume.Volume
	modes    modes
	copies   copyResults
	selfTest selfTest
	added    time.Time

	mu        sync.Mutex // guards what follows; taken before LU.mu
	lus       []*LU
	prevented map[*Nexus]bool
}

// newUnit makes the unit of lu's volume.
func newUnit(lu *LU) (*unit, error) {
	u := &unit{vol: lu.vol, added: time.Now(), prevented: map[*Nexus]bool{}}
	u.copies.room = make(chan struct{}, lu.cfg.Workers)
	if err := u.modes.init(u.vol); err != nil {
		return nil, err
	}
	if u.vol.Gates()&volume.Closed == 0 {
		u.modes.flushOld()
	}
	return u, nil
}

// enter makes lu one of the places of the unit.
func (u *unit) enter(lu *LU) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.lus = append(u.lus, lu)
}

// leave takes lu out again.
func (u *unit) leave(lu *LU) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.lus = slices.DeleteFunc(u.lus, func(x *LU) bool { return x == lu })
}

// places returns the LUs of the unit.
func (u *unit) places() []*LU {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.lus)
}

// everywhere establishes a unit attention for every nexus of every place that match
// accepts (nil: all).
func (u *unit) everywhere(a spc.ASC, match func(*Nexus) bool) {
	for _, lu := range u.places() {
		lu.attention(a, match)
	}
}

// tellCleared tells nexuses whose tasks another one has ended of that, unless each task
// says so itself (TAS).
func (u *unit) tellCleared(match func(*Nexus) bool) {
	if !u.modes.tas.Load() {
		u.everywhere(spc.ASCCommandsCleared, match)
	}
}

// statisticsNow are the times that the unit's commands have taken.
func (u *unit) statisticsNow() volume.Statistics {
	var y volume.Tally
	for _, lu := range u.places() {
		lu.tally(&y)
	}
	read, write := y.Latency()
	return volume.Statistics{ReadTime: read.Sum, WriteTime: write.Sum, Elapsed: time.Since(u.added)}
}

// rewriteSense tells that a rewrite runs, and how far it is.
func (u *unit) rewriteSense() spc.Sense {
	kind, progress := u.vol.Rewriter.Progress()
	s := spc.Sense{Key: spc.KeyNotReady, ASC: spc.ASCSanitizeInProgress, ProgressValid: true, Progress: progress}
	if kind == volume.Format {
		s.ASC = spc.ASCFormatInProgress
	}
	return s
}

func (u *unit) removalPrevented() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.prevented) > 0
}

// preventRemoval notes that n prevents the removal of the medium.
func (u *unit) preventRemoval(n *Nexus) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.prevented[n] = true
}

// allowRemoval ends the prevention by n, or by everyone when n is nil.
func (u *unit) allowRemoval(n *Nexus) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if n == nil {
		clear(u.prevented)
	} else {
		delete(u.prevented, n)
	}
}
