package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// A process that hands its volumes to another one freezes them first: commands that have
// begun end, none begins, nothing goes on in the background; what comes meanwhile is dormant.
// Thawed, the volume goes on as if nothing had happened.

// Why a volume cannot be frozen, or go to another process.
var (
	errRewriting = errors.New("a format, a sanitize or a copy runs; wait for its end")
	errStuck     = errors.New("an atomic write that has failed has not been undone")
	errSeized    = errors.New("it is reserved by RESERVE (SPC-2), which ends with its session")
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
// volume.
func (f *freeze) still() bool {
	v := f.vol
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.nEnabled == 0 && len(v.copying) == 0 && v.users.Load() == 0
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
	if v.Journal.Stuck() {
		return fmt.Errorf("%s: %w", v.first().name, errStuck)
	}
	return nil
}

// thaw lets the commands of a volume begin again.
func thaw(v *Volume) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.frozen = nil
	v.wakeLocked()
}

// Freeze freezes the volumes, and waits until they have come to rest or ctx is done. With an
// error none is frozen.
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
			for _, v := range all {
				thaw(v)
			}
			return err
		}
	}
	return nil
}

// Thaw ends what Freeze has begun.
func (r *Registry) Thaw() {
	r.mu.Lock()
	defer r.mu.Unlock()
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
		v.mu.Lock()
		copies := len(v.copying)
		v.mu.Unlock()
		if copies > 0 || v.Gates()&(Sanitizing|Formatting) != 0 {
			return fmt.Errorf("%s: %w", v.first().name, errRewriting)
		}
	}
	return nil
}

// Carried is what a volume knows that is in no file, for the process that goes on with it.
type Carried struct {
	Epoch          [16]byte `json:"epoch"`
	VolatileWrites bool     `json:"write_cache"`     // see WriteCache
	WriteProtected bool     `json:"write_protected"` // the gate of that name
	// Reservations are in the form of the state file.
	Reservations json.RawMessage `json:"reservations"`
}

// Carry returns what goes with a volume. Preconditions: it is frozen.
func Carry(v *Volume) (Carried, error) {
	if v.Seizer() != nil {
		return Carried{}, errSeized
	}
	var s savedState
	v.Reservations().tell(&s, true)
	b, err := json.Marshal(&s)
	return Carried{
		Epoch: v.Epoch(), VolatileWrites: v.WriteCache(), WriteProtected: v.Gates()&WriteProtected != 0, Reservations: b,
	}, err
}

// Expect says what the volume of a device with an ID begins with, once, in the place of what
// it would begin with otherwise.
func (r *Registry) Expect(id string, c Carried) error {
	var s savedState
	if err := json.Unmarshal(c.Reservations, &s); err != nil {
		return fmt.Errorf("the reservations that were handed over: %w", err)
	}
	if len(s.Regs) > maxRegistrations {
		return fmt.Errorf("%d registrations were handed over; %d is the limit", len(s.Regs), maxRegistrations)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.expected == nil {
		r.expected = map[string]*goingOn{}
	}
	r.expected[id] = &goingOn{Carried: c, reservations: restoreReservations(&s)}
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
}
