package volume

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize/english"

	"softiser/blockdev"
)

// Registry holds the volumes of a server, one for each device, at however many places
// it is served. Two volumes on one device would keep nothing from each other: under
// multipath, which takes what has one designator for one disk, a reservation through one
// would not hold through the other, and two compare-and-writes could both succeed. So a
// device that is there already gets a further place, and one that only looks like it (the
// same identity, opened once more) is refused unless nobody can write either. The zero
// value is ready.
type Registry struct {
	mu  sync.Mutex
	all []*Volume // guarded by mu
	// expected are what volumes begin with that another process had, by their device's ID;
	// guarded by mu.
	expected map[string]*goingOn
	holds    bool // guarded by mu: rewrites stand still, those of volumes that come as well

	shares shares // of the staging memory that writes have
}

// Place is where a volume is served: what a face holds of it. Faces embed one.
type Place struct {
	reg      *Registry
	vol      *Volume
	face     Face
	name     string
	readOnly bool

	users   atomic.Int64 // commands between arrival and release, and what they leave in the background
	gone    atomic.Bool  // removed
	leaving sync.Once
	left    chan struct{} // closed when the place has left its volume
}

// PlaceConfig describes a place.
type PlaceConfig struct {
	Name     string // "LUN 0 of target iqn.…", for messages
	Seed     string // of the identity of a device that has none
	ReadOnly bool   // nobody writes through this place
	Face     Face
}

// Map serves the device of cfg at p, which is filled in, and returns its volume. Once
// it returns the face is told of events. It waits for storage, which others wait for only
// if they map the same device.
func (r *Registry) Map(cfg Config, p *Place, at PlaceConfig) (*Volume, error) {
	p.reg, p.face, p.name, p.readOnly = r, at.Face, at.Name, at.ReadOnly
	p.left = make(chan struct{})
	if int(cfg.Placement) >= len(placementNames) {
		return nil, fmt.Errorf("%v is not known", cfg.Placement)
	}
	id, err := newIdentity(&cfg.Identity, deviceInfo(cfg.Device).ID, at.Seed)
	if err != nil {
		return nil, err
	}
	for {
		v, found, err := r.find(cfg, p, id)
		if err != nil {
			return nil, err
		}
		if found {
			return v, nil
		}
		if v == nil {
			continue // one that was being opened is there now, or could not be opened
		}
		if err = v.open(); err != nil {
			r.forget(v)
		}
		close(v.opened)
		return v, err
	}
}

// find makes p a place of the volume that has the device (found), or of a new one, which
// is still to be opened. Without either, one that was being opened has been waited for.
func (r *Registry) find(cfg Config, p *Place, id Identity) (v *Volume, found bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	info := deviceInfo(cfg.Device)
	keeps := cfg.StateDir != ""
	for _, v := range r.all {
		if !sameDevice(v.dev, cfg.Device) {
			if err := v.beside(&id, info, cfg.Device != nil && !p.readOnly && !info.ReadOnly); err != nil {
				return nil, false, err
			}
			keeps = keeps && (!v.Keeps() || id.Key() != v.id.Key())
			continue
		}
		select {
		case <-v.opened:
		default:
			r.mu.Unlock()
			<-v.opened
			r.mu.Lock()
			return nil, false, nil
		}
		if err := v.joinable(&cfg, &id); err != nil {
			return nil, false, err
		}
		r.joinLocked(v, p)
		return v, true, nil
	}
	if v, err = newVolume(cfg, id, keeps); err != nil {
		return nil, false, err
	}
	v.share.of = &r.shares
	v.goesOn = r.expected[info.ID]
	delete(r.expected, info.ID)
	if r.holds {
		v.hold()
	}
	r.all = append(r.all, v)
	r.joinLocked(v, p)
	return v, false, nil
}

// Volume returns the volume of a device, nil if it is not served.
func (r *Registry) Volume(d blockdev.Device) *Volume {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.all {
		if sameDevice(v.dev, d) {
			return v
		}
	}
	return nil
}

// forget takes a volume out of the registry.
func (r *Registry) forget(v *Volume) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = slices.DeleteFunc(r.all, func(x *Volume) bool { return x == v })
}

func (r *Registry) joinLocked(v *Volume, p *Place) {
	p.vol = v
	v.add(p)
}

// sameDevice reports whether both are one opening of one device.
func sameDevice(a, b blockdev.Device) bool {
	return a != nil && b != nil && reflect.TypeOf(a).Comparable() && reflect.TypeOf(a) == reflect.TypeOf(b) && a == b
}

// joinable says why the volume cannot get a further place. The registry's lock is held.
func (v *Volume) joinable(cfg *Config, id *Identity) error {
	where := v.first()
	switch {
	case v.live == 0:
		return where.lingers()
	case !v.id.equal(id):
		return fmt.Errorf("the volume is %s already, with another serial number, NAA or EUI (NAA %s): initiators would take it for two", where.name, v.id.Key())
	case v.cfg.Placement != cfg.Placement:
		return fmt.Errorf("the volume is %s already, with placement %v", where.name, v.cfg.Placement)
	}
	return nil
}

// lingers is the error for a volume whose removal is not over.
func (p *Place) lingers() error {
	return fmt.Errorf("the volume was %s, which has been removed but still has %s in execution; try again later", p.name, english.Plural(int(p.users.Load()), "command", ""))
}

// beside says why a volume of another device cannot be served beside v.
func (v *Volume) beside(id *Identity, info blockdev.Info, writes bool) error {
	mine := v.Geo().Info
	same := info.ID != "" && info.ID == mine.ID
	if !same && id.Key() != v.id.Key() {
		return nil
	}
	where := v.first()
	switch {
	case !same:
		return fmt.Errorf("%s has the same identifier (NAA %s): initiators would take the two volumes for one; give one of them another", where.name, id.Key())
	case !writes && !v.canWrite():
		return nil
	case v.live == 0:
		return where.lingers()
	}
	return fmt.Errorf("the volume is %s already, opened once before: two openings of what can be written know nothing of each other's reservations and atomic commands. "+
		"Serve the volume that is open at several places instead", where.name)
}

// canWrite reports whether some initiator may change the volume.
func (v *Volume) canWrite() bool {
	return v.dev != nil && !v.Geo().Info.ReadOnly && v.writable()
}

// Writable reports whether commands at this place may write, as far as the place and
// the device go.
func (p *Place) Writable() bool {
	return p.vol.dev != nil && !p.readOnly && !p.vol.Geo().Info.ReadOnly
}

// Start lets what an earlier life of the volume has left undone go on. The face calls
// it when commands may come.
func (p *Place) Start() { p.vol.started.Do(p.vol.Rewriter.resume) }

// Use keeps the place until the caller calls Unuse; it reports false when the place
// has been removed.
func (p *Place) Use() bool {
	p.users.Add(1)
	if p.gone.Load() {
		p.users.Add(-1)
		return false
	}
	return true
}

// Hold is Use for a caller that has the place in use already: it succeeds even if the place has
// been removed meanwhile.
func (p *Place) Hold() { p.users.Add(1) }

// Unuse ends a Use or a Hold.
func (p *Place) Unuse() { p.users.Add(-1) }

// Users returns how many uses there are.
func (p *Place) Users() int64 { return p.users.Load() }

// Removed reports whether the place has been taken away.
func (p *Place) Removed() bool { return p.gone.Load() }

// Drain takes the place away: no further Use succeeds. It waits until none is left, and
// at the last place of its volume for what that does in the background, then leaves the
// volume, which ends with its last place. If ctx ends first, the place leaves when the
// last use does, and Drain may be called again to wait for that.
func (p *Place) Drain(ctx context.Context) error {
	p.reg.mu.Lock()
	if p.gone.CompareAndSwap(false, true) {
		if p.vol.live--; p.vol.live == 0 {
			p.vol.gone.Store(true)
			p.vol.Rewriter.stop()
		}
	}
	p.reg.mu.Unlock()
	p.leaving.Do(func() {
		go func() {
			p.waitUnused()
			p.leave()
			close(p.left)
		}()
	})
	select {
	case <-p.left:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-p.left:
		return nil
	default:
	}
	if n := p.users.Load(); n > 0 {
		return fmt.Errorf("%s the volume: %w", english.Plural(int(n), "command still holds", "commands still hold"), ctx.Err())
	}
	return fmt.Errorf("the last flush of the volume has not ended: %w", ctx.Err())
}

// waitUnused waits until nothing uses the place.
func (p *Place) waitUnused() {
	for p.users.Load() > 0 || p.vol.gone.Load() && p.vol.users.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
}

// leave takes the place out of its volume, and the volume out of the registry with the
// last one.
func (p *Place) leave() {
	r, v := p.reg, p.vol
	r.mu.Lock()
	last := !v.remove(p)
	r.mu.Unlock()
	if last { // still in the registry, so that nobody opens its files meanwhile
		v.shut()
		r.forget(v)
	}
	p.face.Left()
}
