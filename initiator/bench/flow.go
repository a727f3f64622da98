package bench

import "sync"

// flow keeps the operations of several jobs in the ratio of their weights (flow=)
// as fio does: a clone goes on while its part of all operations is not above its
// part of all weights. One that is ahead waits until the others have caught up, or
// looks again after flow_sleep.
type flow struct {
	mu      sync.Mutex // guards what follows, and the shares as far as they say so
	issued  int64      // by all members, and one
	weight  int64      // of all members
	waiting []*flowShare
}

// flowShare is what a clone has of its flow: a weight, and how many operations it has done for it.
type flowShare struct {
	flow   *flow // nil: the clone has none, and is never ahead
	weight int64
	resume func() // called, without locks, when the clone is not ahead any more; nil: it looks itself

	// guarded by flow.mu
	member bool
	queued bool  // in flow.waiting
	issued int64 // operations, since it has become a member
}

// flows are those of a stage, by flow_id.
type flows map[int]*flow

// add puts a clone into its flow. One that begins later joins when it begins, so
// that nobody waits for it before.
func (f flows) add(c *clone) {
	if c.job.Flow == 0 {
		return
	}
	if f[c.job.FlowID] == nil {
		f[c.job.FlowID] = &flow{issued: 1}
	}
	c.share = flowShare{flow: f[c.job.FlowID], weight: int64(c.job.Flow)}
	if c.job.FlowSleep == 0 {
		c.share.resume = c.resume
	}
	if c.job.StartDelay == 0 && c.job.WaitFor == "" {
		c.share.join()
	}
}

// join makes the clone a member, if it is none.
func (s *flowShare) join() {
	if s.flow == nil {
		return
	}
	s.flow.mu.Lock()
	defer s.flow.mu.Unlock()
	if !s.member {
		s.member = true
		s.flow.weight += s.weight
	}
}

// aheadLocked reports whether the clone has done more than its share. The caller holds flow.mu.
func (s *flowShare) aheadLocked() bool { return s.issued*s.flow.weight > s.flow.issued*s.weight }

// admit enters one operation of the clone; false: it is ahead, and resume is called when it is
// not any more.
func (s *flowShare) admit() bool { return s.flow == nil || s.enter() }

func (s *flowShare) enter() bool {
	f := s.flow
	f.mu.Lock()
	if s.aheadLocked() {
		if s.resume != nil && !s.queued {
			s.queued = true
			f.waiting = append(f.waiting, s)
		}
		f.mu.Unlock()
		return false
	}
	f.issued++
	s.issued++
	f.wakeAndUnlock()
	return true
}

// leave takes the clone's operations and weight out.
func (s *flowShare) leave() {
	f := s.flow
	if f == nil {
		return
	}
	f.mu.Lock()
	if !s.member {
		f.mu.Unlock()
		return
	}
	s.member = false
	f.issued -= s.issued
	f.weight -= s.weight
	s.issued = 0
	f.wakeAndUnlock()
}

// wakeAndUnlock resumes those that are not ahead any more, without f.mu, which the caller
// holds and which is free afterwards.
func (f *flow) wakeAndUnlock() {
	for i := 0; i < len(f.waiting); {
		s := f.waiting[i]
		if s.aheadLocked() {
			i++
			continue
		}
		last := len(f.waiting) - 1
		f.waiting[i], f.waiting[last] = f.waiting[last], nil
		f.waiting = f.waiting[:last]
		s.queued = false
		f.mu.Unlock()
		s.resume()
		f.mu.Lock()
		i = 0
	}
	f.mu.Unlock()
}
