package nvmf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"softiser/initiator/internal/wrongport"
	"softiser/internal/nvme"
)

// establish makes the connections of an association: the admin queue, an enabled controller,
// the I/O queues. What it leaves behind after an error is hangUp's.
func (a *Association) establish(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, a.cfg.ConnectTimeout, wrongport.Silent("no association", a.cfg.ConnectTimeout))
	defer cancel()
	t := attempt{a: a, c: &controller{}}
	if err := t.run(ctx); err != nil {
		return err
	}
	a.mu.Lock()
	a.ctrl = t.c
	a.mu.Unlock()
	return nil
}

// attempt is one to make an association: with whom, as far as that is known.
type attempt struct {
	a *Association
	c *controller
}

// run connects the admin queue, enables the controller and connects the queues for I/O.
func (t *attempt) run(ctx context.Context) error {
	// When ctx ends a call, its command stays outstanding on the connection, and its memory is
	// in use until the connection ends.
	a, c := t.a, t.c
	tr, err := a.dialAdmin(ctx)
	if err != nil {
		return err
	}
	a.admin.attach(tr)
	if c.id, err = t.connectQueue(ctx, a.admin.queue, nvme.CntlIDDynamic, adminDepth); err != nil {
		return err
	}
	if err = t.enable(ctx); err != nil {
		return err
	}
	if err = t.identify(ctx); err != nil {
		return err
	}
	if !t.discovery() {
		if err = t.connectIO(ctx); err != nil {
			return err
		}
	}
	if mask := c.ident.OAES & (nvme.NoticeNamespace | nvme.NoticeANA | nvme.NoticeDiscovery); mask != 0 {
		if _, err = a.admin.do(ctx, func(s *nvme.SQE) { s.NewSetFeatures(nvme.FeatureAsyncEvents, 0, mask) }, nil, "Set Features"); err != nil {
			return err
		}
	}
	return nil
}

// connectQueue sends the Connect of a queue, and authenticates where that is asked for. It
// returns the controller's identifier.
func (t *attempt) connectQueue(ctx context.Context, q *queue, cntlid uint16, depth int) (uint16, error) {
	attr := nvme.ConnectDisableFlowControl // without it, the last data of a read can carry its response
	e, err := t.sendConnect(ctx, q, cntlid, depth, attr)
	if err == nil && e.Status()&^nvme.DoNotRetry == nvme.ConnectInvalidParameters && e.DW0() == uint32(nvme.InvalidParameter(false, nvme.ConnectAtAttributes)) {
		e, err = t.sendConnect(ctx, q, cntlid, depth, 0) // the controller cannot do without flow control
	}
	if err != nil {
		return 0, fmt.Errorf("nvmf: Connect of queue %d: %w", q.id, err)
	}
	if s := e.Status(); s != nvme.Success {
		return 0, refused(q.id, s, e.DW0())
	}
	r := nvme.ConnectResult(e.DW0())
	if err := t.authenticate(ctx, q, r&(nvme.AuthRequired|nvme.AuthSecureRequired) != 0); err != nil {
		return 0, fmt.Errorf("nvmf: authentication of queue %d: %w", q.id, err)
	}
	if q.id != 0 && r.CntlID() != cntlid {
		return 0, fmt.Errorf("nvmf: queue %d belongs to controller %d, we asked for %d", q.id, r.CntlID(), cntlid)
	}
	return r.CntlID(), nil
}

// sendConnect sends the Connect of a queue of depth commands.
func (t *attempt) sendConnect(ctx context.Context, q *queue, cntlid uint16, depth int, attr uint8) (nvme.CQE, error) {
	cfg := &t.a.cfg
	data := (&nvme.ConnectData{HostID: cfg.HostID, CntlID: cntlid, Subsystem: cfg.Subsystem, Host: cfg.HostNQN}).AppendTo(nil)
	return q.run(ctx, func(s *nvme.SQE) {
		c := s.NewConnect()
		c.SetQID(q.id)
		c.SetSQSize(uint16(depth))
		c.SetAttributes(attr)
		if q.id == 0 && cfg.KeepAlive > 0 {
			c.SetKeepAlive(cfg.KeepAlive)
		}
	}, data)
}

// authenticate proves on a queue who we are; required says that the controller asks for it.
func (t *attempt) authenticate(ctx context.Context, q *queue, required bool) error {
	prove := t.a.cfg.Authenticate
	q.mu.Lock()
	q.proves, q.held = required && prove != nil, 0
	q.mu.Unlock()
	switch {
	case prove != nil:
		return prove(ctx, exchange{q}, q.id, required)
	case required:
		return errors.New("the controller asks for authentication, and no key is given (--dhchap-secret)")
	}
	return nil
}

// refused says why a Connect has failed.
func refused(qid uint16, s nvme.Status, dw0 uint32) error {
	e := &ConnectError{Queue: qid, DoNotRetry: s&nvme.DoNotRetry != 0}
	s &^= nvme.DoNotRetry | nvme.More
	e.Status = uint16(s)
	switch s {
	case nvme.ConnectInvalidHost:
		e.What = "this host may not use the subsystem"
	case nvme.KeepAliveInvalid:
		e.What = "choose another keep alive timeout"
	}
	if s != nvme.ConnectInvalidParameters {
		return e
	}
	at := uint16(dw0)
	if dw0&(1<<16) == 0 {
		e.What = map[uint16]string{nvme.ConnectAtQID: "queue identifier", nvme.ConnectAtSQSize: "queue size", nvme.ConnectAtKeepAlive: "keep alive timeout: choose another one"}[at]
	} else {
		e.What = map[uint16]string{nvme.ConnectDataAtHostID: "host identifier", nvme.ConnectDataAtCntlID: "controller identifier",
			nvme.ConnectDataAtSubsystem: "subsystem NQN: there is no such subsystem; discovery lists what this host may use", nvme.ConnectDataAtHost: "host NQN"}[at]
	}
	if e.What == "" {
		e.What = fmt.Sprintf("byte %d", at)
	}
	return e
}

// exchange carries the messages of an authentication over a queue.
type exchange struct{ q *queue }

// Send implements Exchange.
func (x exchange) Send(ctx context.Context, msg []byte) error {
	e, err := x.q.run(ctx, func(s *nvme.SQE) { s.NewAuth(nvme.FabricsAuthSend, uint32(len(msg))) }, msg)
	if err == nil && e.Status() != nvme.Success {
		err = statusError("Authentication Send", e.Status())
	}
	return err
}

// Receive implements Exchange.
func (x exchange) Receive(ctx context.Context, room int) ([]byte, error) {
	b := make([]byte, room)
	e, err := x.q.run(ctx, func(s *nvme.SQE) { s.NewAuth(nvme.FabricsAuthReceive, uint32(room)) }, b)
	if err == nil && e.Status() != nvme.Success {
		err = statusError("Authentication Receive", e.Status())
	}
	return b, err
}

// capabilities reads what the controller is.
func (t *attempt) capabilities(ctx context.Context) error {
	a, c := t.a, t.c
	v, err := a.admin.property(ctx, nvme.PropCAP)
	if err != nil {
		return err
	}
	c.cap = nvme.Cap(v)
	if v, err = a.admin.property(ctx, nvme.PropVS); err != nil {
		return err
	}
	c.version = nvme.Version(v)
	if c.cap.MinPage() > 12 {
		return fmt.Errorf("nvmf: the controller's smallest page has 2^%d bytes, 4096 are supported", c.cap.MinPage())
	}
	return nil
}

// enable reads the controller's capabilities and enables it.
func (t *attempt) enable(ctx context.Context) error {
	a, c := t.a, t.c
	if err := t.capabilities(ctx); err != nil {
		return err
	}
	if err := a.admin.setProperty(ctx, nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetNVM, true))); err != nil {
		return err
	}
	limit := max(time.Duration(c.cap.Timeout())*500*time.Millisecond, time.Second)
	return a.admin.pollStatus(ctx, limit, "ready", nvme.CtrlStatus.Ready)
}

// identify reads what the controller says of itself, and checks it.
func (t *attempt) identify(ctx context.Context) error {
	a, c := t.a, t.c
	b := make([]byte, nvme.IdentifyLen)
	if err := a.admin.identify(ctx, nvme.CNSController, 0, b, "Identify Controller"); err != nil {
		return err
	}
	var err error
	if c.ident, err = nvme.ParseController(b); err != nil {
		return err
	}
	if c.ident.CntlID != c.id {
		return fmt.Errorf("nvmf: Connect made controller %d, Identify speaks of %d", c.id, c.ident.CntlID)
	}
	if a.cfg.KeepAlive > 0 && c.ident.KAS > 0 {
		if err := t.learnKeepAlive(ctx); err != nil {
			return err
		}
	}
	if t.discovery() {
		return nil
	}
	if c.ident.IOCCSZ < 4 || c.ident.ICDOff != 0 {
		return fmt.Errorf("nvmf: a capsule of %d times 16 bytes, with data at %d, is none that we can send", c.ident.IOCCSZ, c.ident.ICDOff)
	}
	// Limits of commands that Identify Controller does not have. Controllers before NVMe 2.0
	// refuse the question.
	if c.cap&nvme.CapIOCS != 0 {
		if err := a.admin.identify(ctx, nvme.CNSCommandSetController, 0, b, "Identify Command Set Controller"); err == nil {
			if l, err := nvme.ParseCommandSetLimits(b); err == nil {
				c.limits = l
			}
		} else if lost(err) {
			return err
		}
	}
	return nil
}

// learnKeepAlive asks what the controller has made of our keep alive timeout: it rounds it
// up to its granularity (Base 2.1 §5.1.25.1.8), or has a least one.
func (t *attempt) learnKeepAlive(ctx context.Context) error {
	a, c := t.a, t.c
	unit := time.Duration(c.ident.KAS) * 100 * time.Millisecond
	c.kato = a.cfg.KeepAlive
	c.holds = (c.kato + unit - 1) / unit * unit
	e, err := a.admin.do(ctx, func(s *nvme.SQE) { s.NewGetFeatures(nvme.FeatureKeepAlive, 0) }, nil, "Get Features")
	if lost(err) {
		return err
	}
	if ms := e.DW0(); err == nil && ms > 0 {
		granted := time.Duration(ms) * time.Millisecond
		c.kato, c.holds = min(c.kato, granted), max(c.holds, granted)
	}
	return nil
}

// lost reports whether the connection is gone, or nobody waits any more, and not that the
// controller has said something.
func lost(err error) bool {
	var se *StatusError
	return err != nil && !errors.As(err, &se)
}

// connectIO makes the I/O queues, as many and as deep as the controller allows this time.
func (t *attempt) connectIO(ctx context.Context) error {
	a, c := t.a, t.c
	want := a.cfg.Queues
	e, err := a.admin.do(ctx, func(s *nvme.SQE) { s.NewSetFeatures(nvme.FeatureQueues, 0, nvme.QueueCounts(want, want)) }, nil, "Set Features")
	if err != nil {
		return err
	}
	sq, cq := nvme.ParseQueueCounts(e.DW0())
	granted := min(sq, cq, want)
	if c.cap.Entries() < 2 { // one of them stays empty
		return errors.New("nvmf: the controller's queues have one entry, and so no room for a command")
	}
	depth := min(a.cfg.QueueDepth, c.cap.Entries()-1)
	if c.ident.MaxCmd > 0 {
		depth = min(depth, int(c.ident.MaxCmd))
	}
	if a.io == nil {
		for i := range want {
			a.io = append(a.io, newQueue(a, uint16(i+1), depth))
		}
	}
	depth = min(depth, len(a.io[0].cmds)-1)
	a.open.Store(int32(granted))
	for i, q := range a.io {
		q.mu.Lock()
		q.closed, q.limit = i >= granted, depth
		q.mu.Unlock()
	}
	inside := int(min(c.ident.IOCCSZ, 1<<16))*16 - nvme.SQELen
	for _, q := range a.granted() {
		tr, err := a.dialer.Dial(ctx, nvme.HostQueue{ID: q.id, CntlID: c.id, Entries: depth + 1, Slots: len(q.cmds), InCapsule: inside})
		if err != nil {
			return err
		}
		q.attach(tr)
		if _, err := t.connectQueue(ctx, q, c.id, depth); err != nil {
			return err
		}
	}
	return nil
}

// discovery reports whether the controller is that of a discovery service, which may have a
// name of its own. Controllers of older versions do not say of which kind they are.
func (t *attempt) discovery() bool {
	return t.a.cfg.Subsystem == nvme.DiscoveryNQN || t.c.ident.Type == nvme.TypeDiscovery
}
