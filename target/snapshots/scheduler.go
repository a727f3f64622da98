package snapshots

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Store is where snapshots are.
type Store interface {
	// List returns the snapshots that a plan has made. ErrAway: the volume is not in use here.
	List(p Plan) ([]Snapshot, error)
	// Take makes one of what the volume holds when it is called.
	Take(ctx context.Context, p Plan, name string) error
	// Remove removes one, unless it has come into use meanwhile: ErrHeld.
	Remove(ctx context.Context, p Plan, name string) error
}

// Errors of a Store.
var (
	ErrAway = errors.New("the volume is not in use here")
	ErrHeld = errors.New("the snapshot is in use")
)

// Status is what has become of a plan.
type Status struct {
	Every  time.Duration `json:"every_ns"`
	Keep   int           `json:"keep"`
	Kept   int           `json:"kept"`                 // snapshots of the plan
	Last   string        `json:"last,omitempty"`       // the newest
	Time   time.Time     `json:"last_time,omitzero"`   // when that was taken
	Next   time.Time     `json:"next,omitzero"`        // when the next one is due
	Taken  uint64        `json:"taken_total"`          // by this process
	Failed uint64        `json:"failed_total"`         // times at which it could not be taken, or an old one not removed
	Error  string        `json:"last_error,omitempty"` // of the last time
	// Waiting says why nothing is done about the volume now, such as a group that is on
	// standby.
	Waiting string `json:"waiting,omitempty"`
}

const (
	// look is how often the clock is looked at: it may have been set.
	look = time.Minute
	// again is how long nothing is done when changes are not welcome.
	again = 5 * time.Second
	// patience is how long commands in flight may hold up a change.
	patience = 5 * time.Second
)

// Scheduler takes snapshots by plans. Its methods are safe for concurrent use.
type Scheduler struct {
	store Store
	log   *zap.Logger
	wake  chan struct{} // full when jobs are to be looked at

	mu   sync.Mutex
	jobs map[string]*job // guarded by mu; by volume
}

// job is the work of one plan. Scheduler.mu guards it.
type job struct {
	plan    Plan
	look    time.Time // when it is to be looked at
	running bool
	tried   time.Time       // the last due time that has been used, with or without success
	held    map[string]bool // snapshots about which the log has been told that they stay
	status  Status
}

// New makes a scheduler without plans.
func New(store Store, log *zap.Logger) *Scheduler {
	return &Scheduler{store: store, log: log, wake: make(chan struct{}, 1), jobs: map[string]*job{}}
}

// Set makes plans the ones in force, one for a volume at most. What is under way ends as it
// has begun.
func (s *Scheduler) Set(plans []Plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.jobs
	s.jobs = map[string]*job{}
	for _, p := range plans {
		j := old[p.Volume]
		if j == nil || j.plan.Group != p.Group || j.plan.LV != p.LV || j.plan.Prefix != p.Prefix {
			j = &job{held: map[string]bool{}}
		}
		if j.plan != p {
			j.plan, j.look = p, time.Time{}
			j.status.Every, j.status.Keep = p.Every, p.Keep
		}
		s.jobs[p.Volume] = j
	}
	s.poke()
}

// Status returns what has become of the plan for a volume; nil: there is none.
func (s *Scheduler) Status(volume string) *Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[volume]
	if j == nil {
		return nil
	}
	st := j.status
	return &st
}

func (s *Scheduler) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run takes and removes snapshots until ctx ends, and what is under way has. change is asked
// before each, with what that is; an error says that nothing may be changed now.
func (s *Scheduler) Run(ctx context.Context, change func(what string) (end func(), err error)) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		for _, j := range s.ready() {
			running.Go(func() { s.work(ctx, j, change) })
		}
		t := time.NewTimer(s.idle())
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-s.wake:
			t.Stop()
		case <-t.C:
		}
	}
}

// ready returns the jobs that are to be looked at, which are running then.
func (s *Scheduler) ready() (all []*job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, j := range s.jobs {
		// One that is further away than its interval was planned by another clock.
		if !j.running && (!j.look.After(now) || j.look.Sub(now) > max(j.plan.Every, look)) {
			j.running = true
			all = append(all, j)
		}
	}
	return all
}

// idle is how long nothing is to be done.
func (s *Scheduler) idle() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := look
	for _, j := range s.jobs {
		if !j.running {
			d = min(d, max(time.Until(j.look), 0))
		}
	}
	return d
}

// work looks at a job, and does what is due.
func (s *Scheduler) work(ctx context.Context, j *job, change func(string) (func(), error)) {
	s.mu.Lock()
	p := j.plan
	s.mu.Unlock()
	next := time.Now().Add(again)
	end, err := change("the scheduled snapshot of volume " + p.Volume)
	if err == nil {
		next, err = s.step(ctx, j, p)
		end()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	j.running = false
	j.status.Waiting = ""
	if err != nil {
		j.status.Waiting = err.Error()
	}
	if j.plan == p { // otherwise it is to be looked at again
		j.look = next
	}
	s.poke()
}

// step takes a snapshot if one is due, and returns when to look again. An error says why the
// time has not come although the clock says so.
func (s *Scheduler) step(ctx context.Context, j *job, p Plan) (next time.Time, err error) {
	now := time.Now()
	due := p.due(now)
	next = due.Add(p.Every)
	have, err := s.store.List(p)
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, ErrAway) {
			return now.Add(min(look, p.Every)), err
		}
		s.failed(j, p, due, err)
		return next, nil
	}
	last := newest(have, now)
	s.mu.Lock()
	tried := j.tried
	s.mu.Unlock()
	if tried.After(now) {
		tried = time.Time{}
	}
	if last.Taken.Before(due) && tried.Before(due) {
		name := p.Name(now)
		c, cancel := context.WithTimeout(ctx, patience)
		err := s.store.Take(c, p, name)
		cancel()
		if err != nil {
			if ctx.Err() != nil {
				return next, nil // the process ends: the next one finds that it is due
			}
			s.failed(j, p, due, fmt.Errorf("taking snapshot %s: %w", name, err))
		} else {
			s.log.Info("snapshot taken", zap.String("volume", p.Volume), zap.String("snapshot", name))
			err := s.prune(ctx, j, p, append(have, Snapshot{Name: name, Taken: now}), now)
			s.mu.Lock()
			j.tried, j.status.Error = due, ""
			j.status.Taken++
			s.mu.Unlock()
			if err != nil && ctx.Err() == nil {
				s.failed(j, p, due, err)
			}
		}
		if now, err := s.store.List(p); err == nil {
			have = now
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last = newest(have, time.Now())
	j.status.Kept, j.status.Last, j.status.Time, j.status.Next = len(have), last.Name, last.Taken, next
	return next, nil
}

// failed notes that what was due has not been done.
func (s *Scheduler) failed(j *job, p Plan, due time.Time, err error) {
	s.log.Error("scheduled snapshot failed; the next time is tried again", zap.String("volume", p.Volume), zap.Time("due", due), zap.Error(err))
	s.mu.Lock()
	defer s.mu.Unlock()
	j.tried, j.status.Error = due, err.Error()
	j.status.Next = due.Add(p.Every)
	j.status.Failed++
}

// prune removes the oldest snapshots beyond those that are kept.
func (s *Scheduler) prune(ctx context.Context, j *job, p Plan, have []Snapshot, now time.Time) error {
	var errs []error
	held := map[string]bool{}
	for _, x := range surplus(have, p.Keep, now) {
		why := x.Held
		if why == "" {
			c, cancel := context.WithTimeout(ctx, patience)
			err := s.store.Remove(c, p, x.Name)
			cancel()
			switch {
			case errors.Is(err, ErrHeld):
				why = err.Error()
			case err != nil:
				errs = append(errs, fmt.Errorf("removing snapshot %s: %w", x.Name, err))
				continue
			default:
				s.log.Info("old snapshot removed", zap.String("volume", p.Volume), zap.String("snapshot", x.Name))
				continue
			}
		}
		held[x.Name] = true
		if !j.held[x.Name] {
			s.log.Warn("an old snapshot stays beyond those that are kept", zap.String("volume", p.Volume), zap.String("snapshot", x.Name),
				zap.String("reason", cmp.Or(why, ErrHeld.Error())))
		}
	}
	j.held = held // read and written by whoever runs the job
	return errors.Join(errs...)
}
