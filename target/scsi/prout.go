package scsi

import (
	"encoding/binary"
	"errors"
	"strings"

	"softiser/internal/spc"

	"softiser/target/volume"
)

// cmdPersistOut is PERSISTENT RESERVE OUT (SPC-4 §6.15): the syntax. What the service
// actions mean is in volume/reserve.go.
func cmdPersistOut(t *Task) {
	n := binary.BigEndian.Uint32(t.CDB[5:])
	if n < spc.PersistOutLen || n > 64<<10 {
		t.illegal(spc.ASCParameterListLength)
		return
	}
	t.data.fetchParam(int(n), func(t *Task) { t.toWorker(persistOutJob) })
}

// prRefusal is why a parameter list is refused.
type prRefusal struct {
	asc   spc.ASC
	field int // with ASCInvalidFieldInParam
}

func (e *prRefusal) Error() string { return e.asc.String() }

func badList(field int) error { return &prRefusal{asc: spc.ASCInvalidFieldInParam, field: field} }

// persistOut is one PERSISTENT RESERVE OUT in execution.
type persistOut struct {
	t       *Task
	sa      byte
	typ     volume.ReservationType // none where the scope is not that of the whole unit
	out     spc.PersistOut
	waiting bool // the task ends when those that it preempts have ended
}

func persistOutJob(t *Task) {
	c := persistOut{t: t, sa: t.CDB[1] & 0x1F, typ: volume.ReservationType(t.CDB[2] & 0xF)}
	if t.CDB[2]>>4 != 0 {
		c.typ = volume.NoReservation
	}
	switch err := c.run(t.data.param()); {
	case err != nil:
		refusePR(t, err, c.sa)
	case !c.waiting:
		t.good()
	}
}

// refusePR ends the task with the reason of a refusal.
func refusePR(t *Task, err error, sa byte) {
	aptpl := 20
	if sa == spc.SAProutRegisterMove {
		aptpl = 17
	}
	var r *prRefusal
	switch {
	case errors.As(err, &r) && r.asc == spc.ASCInvalidFieldInParam:
		t.badParam(r.field)
	case errors.As(err, &r):
		t.illegal(r.asc)
	case errors.Is(err, volume.ErrConflict):
		t.status(spc.StatusReservationConflict)
	case errors.Is(err, volume.ErrType):
		t.badCDB(2)
	case errors.Is(err, volume.ErrOtherType):
		t.illegal(spc.ASCInvalidRelease)
	case errors.Is(err, volume.ErrTooMany):
		t.illegal(spc.ASCPRResources)
	case errors.Is(err, volume.ErrNoVictim):
		t.badParam(8)
	case errors.Is(err, volume.ErrNotKept):
		t.badParam(aptpl)
	case errors.Is(err, volume.ErrRegistered):
		t.badParam(20)
	case errors.Is(err, volume.ErrAway):
		t.refuse(volume.Closed)
	default: // the state could not be saved; nothing has changed
		t.failErr(err, volume.Writing)
	}
}

// run carries the service action out.
func (c *persistOut) run(p []byte) error {
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
	vol, me := c.t.lu.vol, &c.t.Nexus.client
	switch c.sa {
	case spc.SAProutRegister, spc.SAProutRegisterIgnore:
		return c.register(p[spc.PersistOutLen:])
	}
	if c.out.SpecIPT {
		return badList(20)
	}
	switch c.sa {
	case spc.SAProutReserve:
		return vol.Reserve(me, c.out.Key, c.typ)
	case spc.SAProutRelease:
		return vol.Unreserve(me, c.out.Key, c.typ)
	case spc.SAProutClear:
		return vol.ClearReservations(me, c.out.Key)
	}
	return c.preempt()
}

// register is REGISTER and REGISTER AND IGNORE EXISTING KEY; ids follows the list with
// SPEC_I_PT.
func (c *persistOut) register(ids []byte) error {
	d, me := c.t.dev, &c.t.Nexus.client
	q := volume.Register{Key: c.out.Key, NewKey: c.out.ActionKey, Persist: c.out.APTPL, Ignore: c.sa == spc.SAProutRegisterIgnore}
	if c.out.AllPorts {
		q.Ports = func(k volume.Registrant) (all []volume.Registrant) {
			for _, rel := range d.alua.allPorts() {
				all = append(all, d.registrant(k.Initiator, rel))
			}
			return all
		}
	}
	if c.out.SpecIPT {
		q.Others = func() ([]volume.Registrant, error) {
			ports, err := parseTransportIDs(ids)
			var all []volume.Registrant
			for _, port := range ports {
				all = append(all, d.registrant(port, me.ID.Port))
			}
			return all, err
		}
	}
	return c.t.lu.vol.Register(me, &q)
}

// initiatorPort decodes the TransportID of an initiator port, and refuses one that no nexus can have:
// that of a device, without an ISID, or with one that is not written as RFC 7143 §4.4.2 does. A
// reservation would be nobody's.
func initiatorPort(b []byte) (port string, n int, err error) {
	if port, n, err = spc.ParseTransportID(b); err != nil {
		return "", 0, err
	}
	if _, isid, _ := strings.Cut(port, ",i,0x"); len(isid) != 12 || strings.Trim(isid, "0123456789abcdef") != "" {
		return "", 0, spc.ErrListLength
	}
	return port, n, nil
}

// parseTransportIDs decodes the list behind SPEC_I_PT: length (4), TransportIDs.
func parseTransportIDs(b []byte) ([]string, error) {
	if len(b) < 4 || uint64(binary.BigEndian.Uint32(b)) != uint64(len(b)-4) {
		return nil, &prRefusal{asc: spc.ASCParameterListLength}
	}
	var ports []string
	for at := 4; at < len(b); {
		port, n, err := initiatorPort(b[at:])
		if err != nil {
			return nil, badList(spc.PersistOutLen + at)
		}
		ports = append(ports, port)
		at += n
	}
	return ports, nil
}

// preempt is PREEMPT and PREEMPT AND ABORT. The status of the latter goes out when the
// tasks and the copies of the preempted nexuses have ended.
func (c *persistOut) preempt() error {
	t := c.t
	q := volume.Preempt{Key: c.out.Key, Victim: c.out.ActionKey, Type: c.typ}
	if c.sa == spc.SAProutPreemptAbort {
		q.Except = &t.Op
		q.Ended = func() {
			port := t.Port.Via()
			t.good()
			port.Push()
		}
	}
	err := t.lu.vol.Preempt(&t.Nexus.client, &q)
	c.waiting = err == nil && q.Ended != nil
	return err
}

// registerAndMove is REGISTER AND MOVE (SPC-4 §5.12.8): the holder registers another
// nexus and hands the reservation over.
func (c *persistOut) registerAndMove(p []byte) error {
	m, err := spc.ParseRegisterMove(p)
	if err != nil {
		return &prRefusal{asc: spc.ASCParameterListLength}
	}
	vol, me := c.t.lu.vol, &c.t.Nexus.client
	return vol.MoveReservation(me, m.Key, func() (to volume.Move, err error) {
		if m.ActionKey == 0 {
			return to, badList(8)
		}
		if m.APTPL && !vol.Keeps() {
			return to, volume.ErrNotKept
		}
		port, n, err := initiatorPort(m.TransportID)
		if err != nil || n != len(m.TransportID) {
			return to, badList(24)
		}
		if _, _, err := c.t.dev.alua.port(m.RelativePort); err != nil || m.RelativePort == 0 {
			return to, badList(18)
		}
		to = volume.Move{NewKey: m.ActionKey, To: c.t.dev.registrant(port, m.RelativePort), Persist: m.APTPL, Unregister: m.Unregister}
		if to.To == me.ID {
			return to, badList(24)
		}
		return to, nil
	})
}
