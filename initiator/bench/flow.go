package bench

import "sync"

// flow keeps the operations of several jobs in the ratio of their weights (flow=)
// as fio does: a clone goes on while its part of all operations is not above its
// part of all weights. One that is ahead waits until the others have caught up, or
// looks again after flow_sleep.
type flow struct {
	mu      sync.Mutex // guards what follows, and in each clone inFlow, queued and flowIssued
	issued  int64      // by all members, and one
	weight  int64      // of all members
	waiting []*clone
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
	c.flow = f[c.job.FlowID]
	if c.job.StartDelay == 0 && c.job.WaitFor == "" {
		c.flow.join(c)
	}
}

func (f *flow) join(c *clone) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !c.inFlow {
		c.inFlow = true
		f.weight += int64(c.job.Flow)
	}
}

// ahead reports whether the clone has done more than its share.
func (f *flow) ahead(c *clone) bool {
	return c.flowIssued*f.weight > f.issued*int64(c.job.Flow)
}

// admit enters one operation of the clone; false: it is ahead, and will be told
// with [clone.resume] when it is not any more, or looks itself.
func (f *flow) admit(c *clone) bool {
	f.mu.Lock()
	if f.ahead(c) {
		if c.job.FlowSleep == 0 && !c.queued {
			c.queued = true
			f.waiting = append(f.waiting, c)
		}
		f.mu.Unlock()
		return false
	}
	f.issued++
	c.flowIssued++
	f.wakeAndUnlock()
	return true
}

// leave takes the clone's operations and weight out.
func (f *flow) leave(c *clone) {
	f.mu.Lock()
	if !c.inFlow {
		f.mu.Unlock()
		return
	}
	c.inFlow = false
	f.issued -= c.flowIssued
	f.weight -= int64(c.job.Flow)
	c.flowIssued = 0
	f.wakeAndUnlock()
}

// wakeAndUnlock resumes those that are not ahead any more, without f.mu, which the caller
// holds and which is free afterwards.
func (f *flow) wakeAndUnlock() {
	for i := 0; i < len(f.waiting); {
		c := f.waiting[i]
		if f.ahead(c) {
			i++
			continue
		}
		last := len(f.waiting) - 1
		f.waiting[i], f.waiting[last] = f.waiting[last], nil
		f.waiting = f.waiting[:last]
		c.queued = false
		f.mu.Unlock()
		c.resume()
		f.mu.Lock()
		i = 0
	}
	f.mu.Unlock()
}
