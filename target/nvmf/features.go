package nvmf

import (
	"sync"
	"time"

	"softiser/internal/nvme"
	"softiser/target/volume"
)

// features are the values that the host has set and that have no effect here, which it
// can read again.
type features struct {
	mu     sync.Mutex
	values map[nvme.FeatureID]uint32
}

// plain are the features that are kept and have no effect: they are about a device
// that does its own scheduling, cooling and power saving.
var plain = map[nvme.FeatureID]bool{
	nvme.FeatureArbitration: true, nvme.FeaturePower: true, nvme.FeatureTemperature: true, nvme.FeatureErrorRecovery: true,
	nvme.FeatureCoalescing: true, nvme.FeatureVector: true, nvme.FeatureWriteAtomicity: true,
}

// served are the features that have an effect.
var served = []nvme.FeatureID{
	nvme.FeatureWriteCache, nvme.FeatureQueues, nvme.FeatureAsyncEvents, nvme.FeatureKeepAlive, nvme.FeatureHostID,
	nvme.FeatureResvMask, nvme.FeatureResvPersist, nvme.FeatureWriteProtect,
}

func featureTable() []byte {
	const supported, ofNamespace, ofController = 1, 1 << 20, 1 << 21
	m := map[nvme.FeatureID]uint32{}
	for id := range plain {
		m[id] = supported | ofController
	}
	for _, id := range served {
		m[id] = supported | ofController
	}
	m[nvme.FeatureResvMask] = supported | ofNamespace
	m[nvme.FeatureResvPersist] = supported | ofNamespace
	m[nvme.FeatureWriteProtect] = supported | ofNamespace
	return nvme.AppendTable(nil, m)
}

// getFeatures answers Get Features with the current value.
func (r adminRequest) getFeatures() {
	q := r.sqe().Features()
	c := r.q.ctrl
	if q.Select() != nvme.SelectCurrent {
		r.end(nvme.InvalidField | nvme.DoNotRetry)
		return
	}
	discovery := c.sub.kind == nvme.TypeDiscovery
	switch id := q.ID(); {
	case id == nvme.FeatureAsyncEvents:
		r.result = uint64(c.events.configured())
	case id == nvme.FeatureKeepAlive:
		c.mu.Lock()
		r.result = uint64(c.alive.timeout / time.Millisecond)
		c.mu.Unlock()
	case discovery:
		r.end(nvme.InvalidField | nvme.DoNotRetry)
		return
	case id == nvme.FeatureQueues:
		n := c.queueLimit()
		r.result = uint64(nvme.QueueCounts(n, n))
	case id == nvme.FeatureWriteCache:
		r.result = 1
	case id == nvme.FeatureHostID:
		if q.Value()&1 == 0 {
			r.end(nvme.InvalidField | nvme.DoNotRetry) // host identifiers have 128 bits
			return
		}
		r.reply(c.hostID[:])
		return
	case id == nvme.FeatureResvMask, id == nvme.FeatureResvPersist, id == nvme.FeatureWriteProtect:
		n := c.sub.namespace(r.sqe().NSID())
		if n == nil {
			r.end(nvme.InvalidNamespace | nvme.DoNotRetry)
			return
		}
		if s := c.access(n).Status(); s != nvme.Success {
			r.end(s)
			return
		}
		switch {
		case id == nvme.FeatureResvMask:
			r.result = uint64(c.events.mask(n.id))
		case id == nvme.FeatureResvPersist && n.vol.Reservations().Persist, id == nvme.FeatureWriteProtect && n.gates()&volume.Protections != 0:
			r.result = 1
		}
	case plain[id]:
		c.features.mu.Lock()
		r.result = uint64(c.features.values[id])
		c.features.mu.Unlock()
	default:
		r.end(nvme.InvalidField | nvme.DoNotRetry)
		return
	}
	r.end(nvme.Success)
}

// setFeatures carries out Set Features.
func (r adminRequest) setFeatures() {
	q := r.sqe().Features()
	c := r.q.ctrl
	if q.Save() {
		r.end(nvme.FeatureNotSaveable | nvme.DoNotRetry)
		return
	}
	discovery := c.sub.kind == nvme.TypeDiscovery
	s := nvme.Success
	switch id, v := q.ID(), q.Value(); {
	case id == nvme.FeatureAsyncEvents:
		c.events.configure(v)
	case id == nvme.FeatureKeepAlive:
		s = c.setKeepAlive(time.Duration(v) * time.Millisecond)
	case discovery:
		s = nvme.InvalidField | nvme.DoNotRetry
	case id == nvme.FeatureQueues:
		r.result, s = c.setQueues(v)
	case id == nvme.FeatureWriteCache:
		s = nvme.FeatureNotChangeable | nvme.DoNotRetry
	case id == nvme.FeatureHostID:
		s = nvme.CommandSequenceError | nvme.DoNotRetry // Connect has said it
	case id == nvme.FeatureWriteProtect:
		protectRequest{volumeRequest{r.request}}.set(v)
		return
	case id == nvme.FeatureResvMask:
		s = c.setMask(r.sqe().NSID(), v)
	case id == nvme.FeatureResvPersist:
		s = nvme.FeatureNotChangeable | nvme.DoNotRetry // Register does
	case plain[id]:
		c.features.mu.Lock()
		if c.features.values == nil {
			c.features.values = map[nvme.FeatureID]uint32{}
		}
		c.features.values[id] = v
		c.features.mu.Unlock()
	default:
		s = nvme.InvalidField | nvme.DoNotRetry
	}
	r.end(s)
}

func (c *controller) setKeepAlive(d time.Duration) nvme.Status {
	if d == 0 && c.sub.kind != nvme.TypeDiscovery {
		return nvme.KeepAliveInvalid | nvme.DoNotRetry
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alive.setLocked(d)
	return nvme.Success
}

// setQueues limits the I/O queues to what the host wants and may have.
func (c *controller) setQueues(v uint32) (uint64, nvme.Status) {
	sq, cq := nvme.ParseQueueCounts(v)
	if sq > 65535 || cq > 65535 {
		return 0, nvme.InvalidField | nvme.DoNotRetry
	}
	if c.ioQueues() > 0 {
		return 0, nvme.CommandSequenceError | nvme.DoNotRetry
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = c.fe.cfg.Limits.Queues
	return uint64(nvme.QueueCounts(c.limit, c.limit)), nvme.Success
}

func (c *controller) setMask(nsid, v uint32) nvme.Status {
	if nsid == nvme.NSIDAll {
		for _, n := range c.sub.list() {
			c.events.setMask(n.id, v)
		}
		return nvme.Success
	}
	n := c.sub.namespace(nsid)
	if n == nil {
		return nvme.InvalidNamespace | nvme.DoNotRetry
	}
	if s := c.access(n).Status(); s != nvme.Success {
		return s
	}
	c.events.setMask(nsid, v)
	return nvme.Success
}
