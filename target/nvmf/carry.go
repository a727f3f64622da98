package nvmf

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"go.uber.org/zap"

	"softiser/internal/handover"
	"softiser/internal/nvme"
	"softiser/target/internal/loglimit"
	"softiser/target/volume"
)

// Carried is what goes to the process that takes the place of this one.
type Carried struct {
	Subsystems  []CarriedSubsystem  `json:"subsystems,omitempty"`
	Controllers []CarriedController `json:"controllers,omitempty"`
}

// CarriedSubsystem is what hosts may remember of a subsystem, and what the administrator has
// changed.
type CarriedSubsystem struct {
	NQN        string             `json:"nqn"`
	LastCntlID uint16             `json:"last_controller_id"`
	ANAChanges uint64             `json:"ana_changes"`
	Namespaces []CarriedNamespace `json:"namespaces,omitempty"`
}

// CarriedNamespace is a namespace that there is.
type CarriedNamespace struct {
	NSID uint32 `json:"nsid"`
	// Access is the state through those portal groups whose state the configuration does not say.
	Access map[uint16]volume.PathState `json:"access,omitempty"`
}

// CarriedController is a controller that stands still.
type CarriedController struct {
	Subsystem string    `json:"subsystem"`
	ID        uint16    `json:"id"`
	Host      string    `json:"host"`
	Born      time.Time `json:"born"`
	ProvedBy  string    `json:"proved_by,omitempty"` // see proofs.last
	association

	Queues []CarriedQueue `json:"queues"` // the admin queue first
}

// association is what a host has made of a controller.
type association struct {
	HostID    nvme.HostID               `json:"host_id"`
	Config    nvme.Config               `json:"cc"`
	Status    nvme.CtrlStatus           `json:"csts"`
	KeepAlive time.Duration             `json:"keep_alive_ns"`
	Limit     int                       `json:"io_queues"`
	Features  map[nvme.FeatureID]uint32 `json:"features,omitempty"`
	Events    carriedEvents             `json:"events"`
	Failed    uint64                    `json:"failed"`           // commands so far
	Errors    []nvme.ErrorEntry         `json:"errors,omitempty"` // the last of them, the oldest first
}

// OverRDMA reports whether it is a controller of NVMe/RDMA.
func (k *CarriedController) OverRDMA() bool { return len(k.Queues) > 0 && k.Queues[0].RDMA != nil }

// carriedEvents are events without the requests that wait for them.
type carriedEvents struct {
	Due     []event               `json:"due,omitempty"`
	Told    []event               `json:"told,omitempty"`
	Config  uint32                `json:"config"`
	Changed []uint32              `json:"changed,omitempty"`
	Notices []nvme.ReservationLog `json:"notices,omitempty"`
	Count   uint64                `json:"count"`
	Masks   map[uint32]uint32     `json:"masks,omitempty"`
}

// Handover is how the controllers of a front end go from one process to the next.
type Handover struct{ f *Frontend }

// Handover returns the part of the front end that hands controllers over, and takes them.
func (f *Frontend) Handover() Handover { return Handover{f} }

// Carry returns the controllers that stand still, with descriptors that are the caller's, and
// a line for each of the others. opensAnew tells by name which volumes do not go over:
// controllers that have one do not, either. Preconditions: Rest.
func (h Handover) Carry(opensAnew func(volume string) bool) (k Carried, left []string) {
	for _, s := range h.f.list() {
		k.Subsystems = append(k.Subsystems, s.carry())
	}
	for _, c := range h.f.controllers() {
		x, why := c.carry(opensAnew)
		if why == nil {
			k.Controllers = append(k.Controllers, x)
			continue
		}
		left = append(left, fmt.Sprintf("controller %d of host %s: %v; the host connects again", c.id, c.host, why))
	}
	return k, left
}

// Discard closes the descriptors.
func (k *Carried) Discard() {
	for i := range k.Controllers {
		k.Controllers[i].discard()
	}
}

func (k *CarriedController) discard() {
	for i := range k.Queues {
		if q := &k.Queues[i]; q.FD >= 0 {
			syscall.Close(q.FD)
			q.FD = -1
		}
	}
}

func (s *subsystem) carry() CarriedSubsystem {
	s.mu.Lock()
	k := CarriedSubsystem{NQN: s.cfg.NQN, LastCntlID: s.lastCntlID, ANAChanges: s.anaChanges.Load()}
	s.mu.Unlock()
	for _, n := range s.list() {
		x := CarriedNamespace{NSID: n.id}
		for _, p := range s.fe.cfg.Portals {
			g := p.Config().Group
			if now, _ := n.vol.Path(g); now != n.cfg.state(g) {
				if x.Access == nil {
					x.Access = map[uint16]volume.PathState{}
				}
				x.Access[g] = now
			}
		}
		k.Namespaces = append(k.Namespaces, x)
	}
	return k
}

// carry returns what the controller is, or why it is not carried.
func (c *controller) carry(opensAnew func(volume string) bool) (k CarriedController, err error) {
	r := c.still.Load()
	switch {
	case r == nil: // it has come since
		return k, errStaysBusy
	case r.why != nil:
		return k, r.why
	}
	for _, n := range c.sub.list() {
		if name := n.cfg.Name; opensAnew(name) {
			return k, fmt.Errorf("volume %s of its subsystem is opened anew", name)
		}
	}
	c.mu.Lock()
	// Nothing of a shutdown is under way: the volumes are frozen.
	k = CarriedController{
		Subsystem: c.sub.cfg.NQN, ID: c.id, Host: c.host, Born: c.since,
		association: association{HostID: c.hostID, Config: c.config, Status: c.statusLocked(), KeepAlive: c.alive.timeout, Limit: c.limit},
	}
	same := !c.over && len(c.queues) == len(r.queues)
	for _, q := range r.queues {
		same = same && c.queues[q.id] == q
	}
	c.mu.Unlock()
	if !same {
		return k, errStaysQueue
	}
	if p := c.proofs.last.Load(); p != nil {
		k.ProvedBy = *p
	}
	c.features.mu.Lock()
	k.Features = maps.Clone(c.features.values)
	c.features.mu.Unlock()
	k.Failed, k.Errors = c.log.carry()
	var waiting []uint16
	k.Events, waiting = c.events.carry()
	for _, q := range r.queues {
		x := CarriedQueue{ID: q.id, Portal: q.conn.Portal.Config().Listen, Opened: q.conn.Opened, NoFlow: q.noFlow, SQHead: q.sqHead.Load()}
		if q.id == 0 {
			x.Events = waiting
		}
		if q.auth != nil {
			x.Proves = q.auth.subNQN
		}
		if err = x.take(q.t); err != nil {
			k.discard()
			return k, err
		}
		k.Queues = append(k.Queues, x)
	}
	return k, nil
}

// Adopt goes on with what another process has handed over, which Check has accepted and
// whose descriptors belong to it. Controllers that it cannot go on with end; the error says
// why. Preconditions: the subsystems and their volumes are there.
func (h Handover) Adopt(k *Carried) error {
	for i := range k.Subsystems {
		if s := h.f.find(k.Subsystems[i].NQN); s != nil {
			s.restore(&k.Subsystems[i])
		}
	}
	err := handover.Each(len(k.Controllers), func(i int) error {
		c := &k.Controllers[i]
		err := h.adopt(c)
		if err != nil {
			c.discard()
			err = fmt.Errorf("controller %d of host %s ends: %w", c.ID, c.Host, err)
		}
		return err
	})
	for i := range k.Subsystems {
		if s := h.f.find(k.Subsystems[i].NQN); s != nil {
			s.compare(k.Subsystems[i].Namespaces)
		}
	}
	return err
}

// restore puts what another process has carried in force.
func (s *subsystem) restore(k *CarriedSubsystem) {
	for _, x := range k.Namespaces {
		n := s.namespace(x.NSID)
		for _, p := range s.fe.cfg.Portals {
			if now, ok := x.Access[p.Config().Group]; ok && n != nil && int(now) < len(anaStates) {
				n.vol.SetPath(p.Config().Group, now)
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastCntlID = k.LastCntlID
	s.anaChanges.Store(k.ANAChanges)
}

// compare tells hosts of namespaces that there are now and were not, and the other way round.
func (s *subsystem) compare(were []CarriedNamespace) {
	var differ []uint32
	for _, n := range s.list() {
		if !slices.ContainsFunc(were, func(x CarriedNamespace) bool { return x.NSID == n.id }) {
			differ = append(differ, n.id)
		}
	}
	for _, x := range were {
		if s.namespace(x.NSID) == nil {
			differ = append(differ, x.NSID)
		}
	}
	for _, id := range differ {
		s.namespaceChanged(id)
	}
	if len(differ) > 0 {
		s.groupsChanged()
	}
}

// adopt goes on with a controller.
func (h Handover) adopt(k *CarriedController) (err error) {
	f := h.f
	s := f.find(k.Subsystem)
	if s == nil || s.kind == nvme.TypeDiscovery {
		return fmt.Errorf("there is no subsystem %s", k.Subsystem)
	}
	var queues []*queue
	defer func() {
		if err != nil {
			for _, q := range queues {
				q.t.Terminate(err) // which has not been started
				f.left(q)
			}
		}
	}()
	for i := range k.Queues {
		q, err := h.adoptQueue(&k.Queues[i], s, k.Host)
		if err != nil {
			return err
		}
		queues = append(queues, q)
	}
	admin := queues[0]
	c := &controller{
		fe: f, sub: s, id: k.ID, host: k.Host, hostID: k.HostID, from: admin.conn.Remote.String(), group: admin.conn.Portal.Config().Group,
		since: k.Born, transport: admin.conn.Hello.String(), connection: admin.t.Describe(), queues: map[uint16]*queue{},
		client: volume.Client{ID: registrant(s.cfg.NQN, k.Host, k.HostID), Holder: admin.account(k.Host)},
		config: k.Config, status: k.Status, limit: k.Limit,
	}
	c.alive.c, c.alive.timeout = c, k.KeepAlive
	c.zlog = admin.log.With(zap.String("subsystem", s.cfg.NQN), loglimit.PeerText("host", k.Host))
	if k.ProvedBy != "" {
		c.proofs.last.Store(&k.ProvedBy)
	}
	c.features.values = maps.Clone(k.Features)
	c.log.restore(k.Failed, k.Errors)
	if err := c.events.restore(&k.Events, admin, k.Queues[0].Events); err != nil {
		return err
	}
	for _, q := range queues {
		c.queues[q.id], q.ctrl = q, c
	}
	if c.seat, err = admin.memory.sit(f.cfg.Limits.Controllers, false); err != nil {
		return err
	}
	if err := s.enterAs(c); err != nil {
		c.seat.leave()
		return err
	}
	c.mu.Lock()
	if !c.status.ShutdownBegun() {
		c.alive.setLocked(c.alive.timeout)
	}
	c.mu.Unlock()
	for _, q := range queues {
		q.mu.Lock()
		q.lookLaterLocked()
		q.mu.Unlock()
		q.t.Start(q)
	}
	c.zlog.Debug("NVMe controller taken over", c.named(), zap.Int("queues", len(queues)))
	c.events.tell()
	return nil
}

// enterAs gives a controller that another process has made its place.
func (s *subsystem) enterAs(c *controller) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.gone:
		return errRemoved
	case s.controllers[c.id] != nil:
		return errors.New("there is such a controller")
	}
	s.controllers[c.id] = c
	return nil
}

// carry returns what there is to tell, and the CIDs of the requests that wait.
func (e *events) carry() (k carriedEvents, waiting []uint16) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k = carriedEvents{Config: e.config, Changed: slices.Clone(e.changed), Notices: slices.Clone(e.notices), Count: e.count, Masks: maps.Clone(e.masks)}
	for i := range eventKinds {
		if e.due[i] {
			k.Due = append(k.Due, i)
		}
		if e.told[i] {
			k.Told = append(k.Told, i)
		}
	}
	for _, r := range e.requests {
		waiting = append(waiting, r.sqe().CID())
	}
	return k, waiting
}

// restore makes e what another process has carried, with the requests of the admin queue q
// that waited. Preconditions: nobody else has e.
func (e *events) restore(k *carriedEvents, q *queue, waiting []uint16) error {
	e.init()
	e.config, e.changed, e.notices, e.count = k.Config, k.Changed, k.Notices, k.Count
	maps.Copy(e.masks, k.Masks)
	for _, i := range k.Due {
		e.due[i] = true
	}
	for _, i := range k.Told {
		e.told[i] = true
	}
	for _, cid := range waiting {
		var sqe nvme.SQE
		sqe.Init(nvme.AdminAsyncEvent, 0)
		sqe.SetCID(cid)
		k := q.parkable().Outstanding(&sqe)
		if k == nil {
			return errors.New("more commands than its admin queue has entries")
		}
		r := &request{q: q}
		k.App = r
		r.begin(k)
		q.open.Add(1)
		e.requests = append(e.requests, r)
	}
	return nil
}

// carry returns how many commands have failed, and the last of them, the oldest first.
func (l *errorLog) carry() (failed uint64, last []nvme.ErrorEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := l.count - min(l.count, errorEntries); i < l.count; i++ {
		last = append(last, l.last[i%errorEntries])
	}
	return l.count, last
}

func (l *errorLog) restore(failed uint64, last []nvme.ErrorEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count = failed
	for i, e := range last {
		l.last[(failed-uint64(len(last)-i))%errorEntries] = e
	}
}
