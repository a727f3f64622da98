package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A process that hands its volumes to another one freezes them first: commands that have
// begun end, none begins, nothing goes on in the background; what comes meanwhile is dormant.
// Thawed, the volume goes on as if nothing had happened.

// Why a volume cannot be frozen, or go to another process.
var (
	errCopying = errors.New("a copy runs; wait for its end")
	errStuck   = errors.New("an atomic write that has failed has not been undone")
)

// freeze is what keeps the commands of a volume from beginning.
type freeze struct {
	vol   *Volume
	ended chan struct{} // of capacity 1: something has ended that was under way
}

// beginFreeze freezes a volume.
func beginFreeze(v *Volume) *freeze {
	f := &freeze{v, make(chan struct{}, 1)}
	v.mu.Lock()
	v.frozen = f
	v.mu.Unlock()
	return f
}

// still reports whether no command that has begun, and nothing in the background, uses the
// volume, but for a rewrite that rests.
func (f *freeze) still() bool {
	v := f.vol
	v.mu.Lock()
	defer v.mu.Unlock()
	resting := int64(0)
	if v.pause.resting {
		resting = 1
	}
	return v.nEnabled == 0 && len(v.copying) == 0 && v.users.Load() == resting
}

// wait waits until the volume has come to rest.
func (f *freeze) wait(ctx context.Context) error {
	v := f.vol
	for !f.still() {
		select {
		case <-f.ended:
		case <-ctx.Done():
			return fmt.Errorf("%s: commands are still under way: %w", v.first().name, ctx.Err())
		}
	}
	if v.Journal.stuck.Load() {
		return fmt.Errorf("%s: %w", v.first().name, errStuck)
	}
	return nil
}

// thaw lets the commands of a volume begin again.
func thaw(v *Volume) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.frozen = nil
	v.releaseLocked()
	v.wakeLocked()
}

// Pause has the rewrites of all volumes stand still, and waits for that. If ctx ends first, or a
// command waits for one, which could not go with it, they go on, and the error names the volume.
func (r *Registry) Pause(ctx context.Context) error {
	r.mu.Lock()
	r.holds = true
	all := append([]*Volume(nil), r.all...)
	for _, v := range all {
		v.hold()
	}
	r.mu.Unlock()
	for _, v := range all {
		if v.awaited() {
			r.Thaw()
			return fmt.Errorf("%s: %w", v.first().name, errAwaited)
		}
		for !v.rests() {
			select {
			case <-v.pause.changed:
			case <-ctx.Done():
				r.Thaw()
				return fmt.Errorf("%s: %w: %w", v.first().name, errRewriting, ctx.Err())
			}
		}
	}
	return nil
}

// Freeze freezes the volumes, and waits until they have come to rest or ctx is done. With an
// error none is frozen, and rewrites go on. Preconditions: Pause.
func (r *Registry) Freeze(ctx context.Context) error {
	r.mu.Lock()
	all := append([]*Volume(nil), r.all...)
	r.mu.Unlock()
	var begun []*freeze
	for _, v := range all {
		begun = append(begun, beginFreeze(v))
	}
	for _, f := range begun {
		if err := f.wait(ctx); err != nil {
			r.Thaw()
			return err
		}
	}
	return nil
}

// Thaw ends what Pause and Freeze have begun.
func (r *Registry) Thaw() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds = false
	for _, v := range r.all {
		thaw(v)
	}
}

// copyLook is how often AwaitCopies looks.
const copyLook = 5 * time.Millisecond

// AwaitCopies waits until no copy runs, while everybody goes on, or ctx is done.
func (r *Registry) AwaitCopies(ctx context.Context) {
	for r.copies() > 0 {
		select {
		case <-time.After(copyLook):
		case <-ctx.Done():
			return
		}
	}
}

// copies is how many copies touch the volumes; one of two volumes counts twice.
func (r *Registry) copies() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.all {
		n += v.Copies()
	}
	return n
}

// Occupied says why the volumes cannot be frozen soon; nil: nothing speaks against it.
func (r *Registry) Occupied() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.all {
		if v.Copies() > 0 {
			return fmt.Errorf("%s: %w", v.first().name, errCopying)
		}
	}
	return nil
}

// Carried is what a volume knows that is in no file, for the process that goes on with it. The
// reservation of SPC-2 goes with the client that has it.
type Carried struct {
	Epoch          [16]byte `json:"epoch"`
	VolatileWrites bool     `json:"write_cache"`       // see WriteCache
	WriteProtected bool     `json:"write_protected"`   // the gate of that name
	Ejected        bool     `json:"ejected,omitempty"` // an initiator has ejected the medium
	// Reservations are in the form of the state file.
	Reservations json.RawMessage `json:"reservations"`
	// Rewrites are those of the volume; nil: what files tell of them is all.
	Rewrites *carriedRewrites `json:"rewrites,omitempty"`
	// Unsaved says that a loss of power may bring up another state file than the one that is there, so that
	// the next change is saved even if it need not be kept.
	Unsaved bool `json:"unsaved,omitempty"`
	// Marks are the bad blocks where they are others than those of the state file: after Unsaved they may be
	// in it when power has been lost, and only a write of a block that is known to be marked saves that it is not.
	Marks marks `json:"uncorrectable,omitempty"`
}

// Carry returns what goes with a volume. Preconditions: it is frozen.
func Carry(v *Volume) (Carried, error) {
	var s savedState
	v.Reservations().tell(&s, true)
	b, err := json.Marshal(&s)
	if err != nil {
		return Carried{}, err
	}
	rewrites, err := v.Rewriter.carry()
	v.state.mu.Lock()
	defer v.state.mu.Unlock()
	c := Carried{
		Epoch: v.Epoch(), VolatileWrites: v.WriteCache(), WriteProtected: v.Gates()&WriteProtected != 0,
		Ejected: v.dev != nil && v.Gates()&NoMedium != 0, Reservations: b, Rewrites: rewrites,
		Unsaved: v.state.unsaved,
	}
	if m := v.marksNow(); !slices.Equal(m, v.state.kept.Marks) {
		c.Marks = m
	}
	return c, err
}

// Check says what in c no process of ours has carried.
func (c *Carried) Check() error {
	_, err := c.read()
	return err
}

// read returns the reservations; an error is that of Check.
func (c *Carried) read() (*savedState, error) {
	var s savedState
	if err := json.Unmarshal(c.Reservations, &s); err != nil {
		return nil, fmt.Errorf("the reservations that were handed over: %w", err)
	}
	if len(s.Regs) > maxRegistrations {
		return nil, fmt.Errorf("%d registrations were handed over; %d is the limit", len(s.Regs), maxRegistrations)
	}
	return &s, c.Rewrites.check()
}

// Expect says what the volume of a device with an ID begins with, once, in the place of what
// it would begin with otherwise. Rewrites of volumes that come are held from then on, until Thaw.
func (r *Registry) Expect(id string, c Carried) error {
	s, err := c.read()
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds = true
	if r.expected == nil {
		r.expected = map[string]*goingOn{}
	}
	r.expected[id] = &goingOn{Carried: c, reservations: restoreReservations(s)}
	return nil
}

// goingOn is what a volume begins with that another process had.
type goingOn struct {
	Carried
	reservations *Reservations
}

// begin puts in force what another process has left.
func (g *goingOn) begin(v *Volume) {
	epoch := g.Epoch
	v.setEpoch(&epoch)
	v.now.Store(g.reservations)
	v.cache.Store(g.VolatileWrites)
	v.SetGate(WriteProtected, g.WriteProtected)
	if g.Ejected {
		v.SetGate(NoMedium, true)
	}
	if g.Rewrites != nil {
		v.Rewriter.goOn(g.Rewrites)
	}
	v.state.mu.Lock()
	v.state.unsaved = g.Unsaved // not saved here: the other process may still go on with the file
	if g.Marks != nil {
		v.publishMarks(g.Marks)
	}
	v.state.mu.Unlock()
}
