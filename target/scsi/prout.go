package scsi

import (
	"encoding/binary"
	"errors"

	spc "softiser/internal/scsi"
)

// cmdPersistOut is PERSISTENT RESERVE OUT (SPC-4 §6.15).
func cmdPersistOut(t *Task) {
	n := binary.BigEndian.Uint32(t.CDB[5:])
	if n < spc.PersistOutLen || n > 64<<10 {
		t.illegal(spc.ASCParameterListLength)
		return
	}
	t.fetchParam(int(n), func(t *Task) { t.toWorker(persistOutJob) })
}

// prRefusal is why a service action is not carried out.
type prRefusal struct {
	conflict bool
	asc      spc.ASC
	inCDB    bool
	field    int
}

func (e *prRefusal) Error() string { return e.asc.String() }

var errConflict = &prRefusal{conflict: true}

func badList(field int) error { return &prRefusal{asc: spc.ASCInvalidFieldInParam, field: field} }

// prChange is one PERSISTENT RESERVE OUT in execution.
type prChange struct {
	t      *Task
	sa     byte
	typ    spc.PRType
	scope  byte
	out    spc.PersistOut
	old    *reservations
	now    *reservations // nil: nothing changes
	self   regKey
	key    uint64 // of self
	member bool   // self is registered
	// abort are the nexuses whose tasks PREEMPT AND ABORT ends.
	abort map[regKey]bool
	// after runs when the change has been published: unit attentions.
	after []func()
}

func persistOutJob(t *Task) {
	lu := t.lu
	lu.prMu.Lock()
	c := &prChange{t: t, sa: t.CDB[1] & 0x1F, typ: spc.PRType(t.CDB[2] & 0xF), scope: t.CDB[2] >> 4,
		old: lu.pr.Load(), self: t.Nexus.regKey()}
	reg, ok := c.old.regs[c.self]
	c.key, c.member = reg.Key, ok
	err := c.run(t.param())
	if err == nil && c.now != nil {
		if len(c.now.regs) > maxRegistrations {
			err = &prRefusal{asc: spc.ASCPRResources}
		} else if err = lu.saveReservations(c.now); err == nil {
			lu.pr.Store(c.now)
		}
	}
	lu.prMu.Unlock()
	if err != nil {
		t.refusePR(err)
		return
	}
	for _, f := range c.after {
		f()
	}
	if len(c.abort) > 0 {
		lu.abortPreempted(t, c.abort)
		return
	}
	t.good()
}

// refusePR ends the task with the reason of a refusal.
func (t *Task) refusePR(err error) {
	var r *prRefusal
	switch {
	case !errors.As(err, &r): // the state could not be saved; nothing has changed
		t.fail(spc.KeyHardware, spc.ASCInternalFailure)
	case r.conflict:
		t.status(spc.StatusReservationConflict)
	case r.inCDB:
		t.badCDB(r.field)
	case r.asc == spc.ASCInvalidFieldInParam:
		t.badParam(r.field)
	default:
		t.illegal(r.asc)
	}
}

// run decides what the service action changes.
func (c *prChange) run(p []byte) error {
	if c.sa == spc.SAProutRegisterMove {
		return c.registerAndMove(p)
	}
	var err error
	if c.out, err = spc.ParsePersistOut(p); err != nil {
		return &prRefusal{asc: spc.ASCParameterListLength}
	}
	if len(p) != spc.PersistOutLen && !c.out.SpecIPT {
		return &prRefusal{asc: spc.ASCParameterListLength}
	}
	switch c.sa {
	case spc.SAProutRegister, spc.SAProutRegisterIgnore:
		return c.register(p[spc.PersistOutLen:])
	}
	if c.out.SpecIPT {
		return badList(20)
	}
	if !c.member || c.out.Key != c.key {
		return errConflict
	}
	switch c.sa {
	case spc.SAProutReserve:
		return c.reserve()
	case spc.SAProutRelease:
		return c.release()
	case spc.SAProutClear:
		c.next().gen++
		c.now.regs = map[regKey]registration{}
		c.now.typ, c.now.holder = spc.PRNone, regKey{}
		c.tell(spc.ASCReservPreempted, c.old.registered(c.t.Nexus))
		return nil
	}
	return c.preempt()
}

// next makes the snapshot that is to come.
func (c *prChange) next() *reservations {
	c.now = c.old.clone()
	return c.now
}

func (c *prChange) tell(a spc.ASC, who func(*Nexus) bool) {
	c.after = append(c.after, func() { c.t.lu.attention(a, who) })
}

// register is REGISTER and REGISTER AND IGNORE EXISTING KEY.
func (c *prChange) register(ids []byte) error {
	if c.out.APTPL && !c.t.lu.canSave() {
		return badList(20)
	}
	if c.sa == spc.SAProutRegister {
		if c.member && c.out.Key != c.key || !c.member && c.out.Key != 0 {
			return errConflict
		}
	}
	if c.out.SpecIPT && (c.member || c.sa == spc.SAProutRegisterIgnore) {
		return badList(20)
	}
	if !c.member && c.out.ActionKey == 0 && !c.out.SpecIPT {
		return nil // nothing to unregister
	}
	keys := []regKey{c.self}
	if c.out.SpecIPT {
		more, err := parseTransportIDs(ids)
		if err != nil {
			return err
		}
		for _, port := range more {
			keys = append(keys, regKey{port, c.self.Rel})
		}
	}
	now := c.next()
	now.gen++
	now.aptpl = c.out.APTPL
	if c.out.ActionKey == 0 {
		c.unregister(now)
		return nil
	}
	for _, k := range keys {
		ports := []uint16{k.Rel}
		if c.out.AllPorts {
			ports = c.t.dev.alua.allPorts()
		}
		for _, rel := range ports {
			at := regKey{k.Port, rel}
			if _, taken := now.regs[at]; taken && at != c.self && c.out.SpecIPT {
				return errConflict
			}
			r := registration{Key: c.out.ActionKey, AllPorts: c.out.AllPorts}
			if k == c.self {
				r.User = c.t.Nexus.user
			}
			now.regs[at] = r
		}
	}
	return nil
}

// unregister removes the nexus's own registration. If that ends a registrants
// only reservation, the other registrants learn it.
func (c *prChange) unregister(now *reservations) {
	typ := now.typ
	if now.remove(c.self) && (typ == spc.PRWriteExclusiveRegistrants || typ == spc.PRExclusiveAccessRegistrants) {
		c.tell(spc.ASCReservReleased, now.registered(c.t.Nexus))
	}
}

// parseTransportIDs decodes the list behind SPEC_I_PT: length (4), TransportIDs.
func parseTransportIDs(b []byte) ([]string, error) {
	if len(b) < 4 || uint64(binary.BigEndian.Uint32(b)) != uint64(len(b)-4) {
		return nil, &prRefusal{asc: spc.ASCParameterListLength}
	}
	var ports []string
	for at := 4; at < len(b); {
		port, n, err := spc.ParseTransportID(b[at:])
		if err != nil {
			return nil, badList(spc.PersistOutLen + at)
		}
		ports = append(ports, port)
		at += n
	}
	return ports, nil
}

func (c *prChange) reserve() error {
	if c.scope != 0 || !c.typ.Valid() {
		return &prRefusal{asc: spc.ASCInvalidFieldInCDB, inCDB: true, field: 2}
	}
	if c.old.typ != spc.PRNone {
		if c.old.holds(c.self) && c.old.typ == c.typ {
			return nil
		}
		return errConflict
	}
	now := c.next()
	now.typ, now.holder = c.typ, c.self
	return nil
}

// release: a registrant that is not the holder changes nothing, and that is
// GOOD. After a type that others had access under, they learn it.
func (c *prChange) release() error {
	if !c.old.holds(c.self) {
		return nil
	}
	if c.scope != 0 || c.typ != c.old.typ {
		return &prRefusal{asc: spc.ASCInvalidRelease}
	}
	now := c.next()
	now.typ, now.holder = spc.PRNone, regKey{}
	if c.typ.RegistrantsOnly() {
		c.tell(spc.ASCReservReleased, c.old.registered(c.t.Nexus))
	}
	return nil
}

// preempt is PREEMPT and PREEMPT AND ABORT (SPC-4 §5.12.11.4): registrations with
// the service action key go; if the key is the holder's, the preempting nexus
// takes the reservation over with the type in the CDB.
func (c *prChange) preempt() error {
	victim := c.out.ActionKey
	all := c.old.typ.AllRegistrants()
	takes := false
	switch {
	case c.old.typ == spc.PRNone:
	case all:
		takes = victim == 0
	default:
		takes = c.old.regs[c.old.holder].Key == victim
	}
	if victim == 0 && !takes {
		return badList(8)
	}
	if takes && (c.scope != 0 || !c.typ.Valid()) {
		return &prRefusal{asc: spc.ASCInvalidFieldInCDB, inCDB: true, field: 2}
	}
	now := c.next()
	now.gen++
	gone, found := map[regKey]bool{}, false
	for k, r := range c.old.regs {
		match := r.Key == victim || takes && all
		found = found || match
		if match && k != c.self {
			delete(now.regs, k)
			gone[k] = true
		}
	}
	if !found {
		c.now = nil
		return errConflict
	}
	if takes {
		now.typ, now.holder = c.typ, c.self
		if c.typ != c.old.typ && c.old.typ.RegistrantsOnly() {
			c.tell(spc.ASCReservReleased, now.registered(c.t.Nexus))
		}
	} else if all && len(now.regs) == 0 {
		now.typ = spc.PRNone
	}
	c.tell(spc.ASCRegistrPreempted, func(n *Nexus) bool { return gone[n.regKey()] })
	if c.sa == spc.SAProutPreemptAbort {
		c.abort = gone
		if takes && victim == c.key {
			c.abort[c.self] = true
		}
	}
	return nil
}

// abortPreempted ends the tasks and the copies of the preempted nexuses, then t.
func (lu *LU) abortPreempted(t *Task, gone map[regKey]bool) {
	w := newWait(func() {
		port := t.Port
		t.good()
		port.Push()
	})
	lu.abortWhere(func(x *Task) abortReason {
		if x == t || !gone[x.Nexus.regKey()] {
			return notAborted
		}
		return byNexus(x, t.Nexus)
	}, w)
	lu.abortCopies(func(n *Nexus) bool { return gone[n.regKey()] }, w)
	w.one()
}

// registerAndMove is REGISTER AND MOVE (SPC-4 §5.12.8): the holder registers another
// nexus and hands the reservation over.
func (c *prChange) registerAndMove(p []byte) error {
	m, err := spc.ParseRegisterMove(p)
	if err != nil {
		return &prRefusal{asc: spc.ASCParameterListLength}
	}
	if !c.member || m.Key != c.key {
		return errConflict
	}
	if c.old.typ == spc.PRNone || !c.old.holds(c.self) || c.old.typ.AllRegistrants() {
		return errConflict
	}
	if m.ActionKey == 0 {
		return badList(8)
	}
	if m.APTPL && !c.t.lu.canSave() {
		return badList(17)
	}
	port, n, err := spc.ParseTransportID(m.TransportID)
	if err != nil || n != len(m.TransportID) {
		return badList(24)
	}
	if _, _, err := c.t.dev.alua.port(m.RelativePort); err != nil || m.RelativePort == 0 {
		return badList(18)
	}
	to := regKey{port, m.RelativePort}
	if to == c.self {
		return badList(24)
	}
	now := c.next()
	now.gen++
	now.aptpl = m.APTPL
	now.regs[to] = registration{Key: m.ActionKey}
	now.holder = to
	if m.Unregister {
		delete(now.regs, c.self)
	}
	return nil
}
