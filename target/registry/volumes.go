package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/config"
	"softiser/internal/namelock"
)

// openVolume is a volume and the places that it is served at. Guarded by volumes.mu but
// for dev.
type openVolume struct {
	cfg    config.Volume
	dev    blockdev.Device
	places []place
}

// volumes are those that are open. One is opened with its first place and closed after
// its last.
type volumes struct {
	store func(config.Volume) (blockdev.Device, error) // opens one
	log   *zap.Logger

	turns namelock.Turns[string] // who has that of a name may open, resize or close its volume
	asked asked                  // in such turns

	mu     sync.Mutex // guards what follows; never held while storage is asked for something
	byName map[string]*openVolume
	// wanted are the volumes that a reload is going to serve: one that changes its
	// place stays open meanwhile, and if it is in memory keeps its content.
	wanted map[string]config.Volume
}

func newVolumes(log *zap.Logger, store func(config.Volume) (blockdev.Device, error)) *volumes {
	return &volumes{store: store, log: log, byName: map[string]*openVolume{}}
}

// begin waits for the turn of a volume, as long as ctx allows.
func (s *volumes) begin(ctx context.Context, name string) (end func(), err error) {
	end, err = s.turns.BeginWithin(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("storage is busy with volume %s: %w", name, err)
	}
	return end, nil
}

// serve has do serve a volume, which is opened if it is not open yet, and take its place.
func (s *volumes) serve(ctx context.Context, v config.Volume, do func(*openVolume) error) error {
	end, err := s.begin(ctx, v.Name)
	if err != nil {
		return err
	}
	defer end()
	o, err := s.opened(v)
	if err != nil {
		return err
	}
	if err := do(o); err != nil {
		return errors.Join(err, s.drop(o))
	}
	return nil
}

// take notes that a volume is served at p, and leave that it is not after all.
func (s *volumes) take(o *openVolume, p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.places = append(o.places, p)
}

func (s *volumes) leave(o *openVolume, p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(o.places, p); i >= 0 { // who removes the target may have taken it away
		o.places = slices.Delete(o.places, i, i+1)
	}
}

// opened returns a volume, which it opens if it is not open yet. The caller has the turn.
func (s *volumes) opened(v config.Volume) (*openVolume, error) {
	if o := s.find(v.Name); o != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !reflect.DeepEqual(o.cfg, v) {
			return nil, errOpen(v, differing(o.cfg, v))
		}
		return o, nil
	}
	defer s.asked.during("opening volume " + v.Name)()
	dev, err := s.store(v)
	if err != nil {
		return nil, err
	}
	o := &openVolume{cfg: v, dev: dev}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byName[v.Name] = o
	return o, nil
}

// errOpen refuses a volume whose name an open one has that differs in keys.
func errOpen(v config.Volume, keys []string) error {
	return fmt.Errorf("volume %s is open already, with another %s; take another name for a volume of its own", v.Name, strings.Join(keys, ", "))
}

// find returns the open volume of a name, or nil.
func (s *volumes) find(name string) *openVolume {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byName[name]
}

// at returns the volume that is served at p, or nil.
func (s *volumes) at(p place) *openVolume {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.byName {
		if slices.Contains(o.places, p) {
			return o
		}
	}
	return nil
}

// description is how a volume has been opened.
func (s *volumes) description(o *openVolume) config.Volume {
	s.mu.Lock()
	defer s.mu.Unlock()
	return o.cfg
}

// describe changes the description of an open volume.
func (s *volumes) describe(o *openVolume, change func(*config.Volume)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&o.cfg)
}

// placesOf returns where a volume is served.
func (s *volumes) placesOf(o *openVolume) []place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(o.places)
}

// all returns the open volumes, by name.
func (s *volumes) all() []*openVolume {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.byName), func(a, b *openVolume) int { return strings.Compare(a.cfg.Name, b.cfg.Name) })
}

// resize changes the size of an open volume, bytes, in its turn.
func (s *volumes) resize(ctx context.Context, o *openVolume, size int64) error {
	name := s.description(o).Name
	dev, ok := o.dev.(blockdev.Resizer)
	if !ok {
		return fmt.Errorf("volume %s: resize: %w", name, blockdev.ErrNotSupported)
	}
	end, err := s.begin(ctx, name)
	if err != nil {
		return err
	}
	defer end()
	defer s.asked.during("resizing volume " + name)()
	if err := dev.Resize(size); err != nil {
		return fmt.Errorf("volume %s: resize to %s: %w", name, config.Size(size), err)
	}
	s.log.Info("volume resized", zap.String("volume", name), zap.Int64("bytes", size))
	return nil
}

// free forgets places that have been taken away, and returns the volumes that had them.
func (s *volumes) free(gone func(place) bool) (freed []*openVolume) {
	for _, o := range s.all() {
		s.mu.Lock()
		n := len(o.places)
		o.places = slices.DeleteFunc(o.places, gone)
		if len(o.places) < n {
			freed = append(freed, o)
		}
		s.mu.Unlock()
	}
	return freed
}

// release closes those of the volumes that have no other place.
func (s *volumes) release(ctx context.Context, freed []*openVolume) error {
	var errs []error
	for _, o := range freed {
		errs = append(errs, s.dropUnused(ctx, o))
	}
	return errors.Join(errs...)
}

// closePatience is how long somebody waits for the end of a volume that has lost its last place.
const closePatience = 10 * time.Second

// dropUnused is drop for a caller that does not have the turn. When that does not come before ctx ends, or storage takes
// longer than closePatience, the volume is closed later, and the log has what became of it.
func (s *volumes) dropUnused(ctx context.Context, o *openVolume) error {
	name := s.description(o).Name
	end, err := s.begin(ctx, name)
	turn := err == nil
	done := make(chan error, 1)
	go func() {
		if !turn {
			end = s.turns.Begin(name)
		}
		defer end()
		done <- s.drop(o)
	}()
	if turn {
		select {
		case err := <-done:
			return err
		case <-time.After(closePatience):
		}
		err = fmt.Errorf("volume %s: storage has not closed it yet; it goes on, and the log tells what becomes of it", name)
	}
	go func() {
		if err := <-done; err != nil {
			s.log.Error("closing a volume failed", zap.String("volume", name), zap.Error(err))
		}
	}()
	return err
}

// drop closes a volume that nothing serves and nobody wants. The caller has the turn.
func (s *volumes) drop(o *openVolume) error {
	s.mu.Lock()
	v, wanted := s.wanted[o.cfg.Name]
	used := s.byName[o.cfg.Name] != o || len(o.places) > 0 || wanted && reflect.DeepEqual(v, o.cfg)
	if !used {
		delete(s.byName, o.cfg.Name)
	}
	s.mu.Unlock()
	if used {
		return nil
	}
	defer s.asked.during("closing volume " + o.cfg.Name)()
	return o.dev.Close()
}

// want says which volumes a reload is going to serve, and makes the descriptions of open
// volumes the new ones where they differ in what a reload changes on line: they are the same.
func (s *volumes) want(served map[string]config.Volume, all []config.Volume) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted = served
	for _, v := range all {
		if o := s.byName[v.Name]; o != nil && len(withoutTunables(differing(o.cfg, v))) == 0 {
			o.cfg = v
		}
	}
}

// settle ends what want began: what nothing serves is closed.
func (s *volumes) settle(ctx context.Context, failed func(name string, err error)) {
	s.mu.Lock()
	s.wanted = nil
	s.mu.Unlock()
	for _, o := range s.all() {
		if len(s.placesOf(o)) > 0 {
			continue
		}
		if err := s.dropUnused(ctx, o); err != nil {
			failed(s.description(o).Name, err)
		}
	}
}

// close closes all volumes, wherever they are served, when what storage does for them has
// ended.
func (s *volumes) close(failed func(name string, err error)) {
	for {
		names := s.turns.Names() // first: what is being opened has its name in byName when its turn is over
		s.mu.Lock()
		names = slices.AppendSeq(names, maps.Keys(s.byName))
		s.mu.Unlock()
		if len(names) == 0 {
			return
		}
		for _, name := range names {
			if err := s.closeOne(name); err != nil {
				failed(name, err)
			}
		}
	}
}

func (s *volumes) closeOne(name string) error {
	defer s.turns.Begin(name)()
	s.mu.Lock()
	o := s.byName[name]
	delete(s.byName, name)
	s.mu.Unlock()
	if o == nil {
		return nil
	}
	defer s.asked.during("closing volume " + name)()
	return o.dev.Close()
}
