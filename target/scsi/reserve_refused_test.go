package scsi

import (
	"encoding/binary"
	"strings"
	"testing"

	"softiser/internal/spc"
)

// TestReservationsRefused: what PERSISTENT RESERVE OUT refuses changes nothing.
func TestReservationsRefused(t *testing.T) {
	r := newRig(t, Config{}) // nowhere to save anything
	a, b := r.nx[0], r.nx[1]
	r.prout(a, spc.SAProutRegister, 0, 0, keyA).good()
	r.prout(a, spc.SAProutReserve, spc.PRWriteExclusive, keyA, 0).good()
	lu := r.dev.lookup(0)
	before := lu.vol.Reservations()
	ipt := func(p *spc.PersistOut) { p.SpecIPT = true }
	raw := func(n *Nexus, sa byte, list []byte) *result {
		return r.on(n, 0, spc.AppendPersistOut(nil, sa, spc.PRWriteExclusive, uint32(len(list))), list, 0)
	}
	move := func(n *Nexus, f func(*spc.RegisterMove)) *result {
		m := spc.RegisterMove{Key: keyA, ActionKey: keyB, RelativePort: 1, TransportID: spc.AppendTransportID(nil, b.client.ID.Initiator)}
		f(&m)
		return raw(n, spc.SAProutRegisterMove, m.Append(nil))
	}
	conflict := func(got *result) { t.Helper(); got.is(spc.StatusReservationConflict) }
	short := (&spc.PersistOut{Key: keyA}).Append(nil)

	raw(a, spc.SAProutRelease, short[:23]).illegal(spc.ASCParameterListLength)
	raw(a, spc.SAProutRelease, append(short, 0)).illegal(spc.ASCParameterListLength)
	raw(a, spc.SAProutRegister, make([]byte, 64<<10+1)).illegal(spc.ASCParameterListLength)
	for _, sa := range []byte{spc.SAProutReserve, spc.SAProutRelease, spc.SAProutClear, spc.SAProutPreempt, spc.SAProutPreemptAbort} {
		conflict(r.prout(a, sa, spc.PRWriteExclusive, keyB, keyA)) // not its key
		conflict(r.prout(b, sa, spc.PRWriteExclusive, 0, keyA))    // not registered
		r.prout(a, sa, spc.PRWriteExclusive, keyA, keyA, ipt).illegal(spc.ASCInvalidFieldInParam)
	}
	conflict(r.prout(a, spc.SAProutRegister, 0, keyB, keyB))
	conflict(r.prout(b, spc.SAProutRegister, 0, keyA, keyB))
	r.prout(b, spc.SAProutRegister, 0, 0, keyB, aptpl).illegal(spc.ASCInvalidFieldInParam)
	r.prout(a, spc.SAProutRegister, 0, keyA, keyB, ipt).illegal(spc.ASCInvalidFieldInParam)
	r.prout(b, spc.SAProutRegisterIgnore, 0, 0, keyB, ipt).illegal(spc.ASCInvalidFieldInParam)
	conflict(r.prout(a, spc.SAProutReserve, spc.PRExclusiveAccess, keyA, 0)) // another type
	r.prout(a, spc.SAProutRelease, spc.PRExclusiveAccess, keyA, 0).illegal(spc.ASCInvalidRelease)
	conflict(move(a, func(m *spc.RegisterMove) { m.Key = keyB }))
	conflict(move(b, func(m *spc.RegisterMove) {}))
	move(a, func(m *spc.RegisterMove) { m.ActionKey = 0 }).illegal(spc.ASCInvalidFieldInParam)
	move(a, func(m *spc.RegisterMove) { m.APTPL = true }).illegal(spc.ASCInvalidFieldInParam)
	move(a, func(m *spc.RegisterMove) { m.RelativePort = 0 }).illegal(spc.ASCInvalidFieldInParam)
	move(a, func(m *spc.RegisterMove) { m.RelativePort = 9 }).illegal(spc.ASCInvalidFieldInParam)
	move(a, func(m *spc.RegisterMove) { m.TransportID = spc.AppendTransportID(nil, a.client.ID.Initiator) }).illegal(spc.ASCInvalidFieldInParam)
	// Whom no session can be: without an ISID, or with one that is written in another way.
	host, _, _ := strings.Cut(b.client.ID.Initiator, ",i,")
	for _, nobody := range []string{host, host + ",i,0x1", host + ",i,0x00000000000g"} {
		id := spc.AppendTransportID(nil, nobody)
		move(a, func(m *spc.RegisterMove) { m.TransportID = id }).illegal(spc.ASCInvalidFieldInParam)
		list := (&spc.PersistOut{ActionKey: keyB, SpecIPT: true}).Append(nil)
		raw(b, spc.SAProutRegister, append(binary.BigEndian.AppendUint32(list, uint32(len(id))), id...)).illegal(spc.ASCInvalidFieldInParam)
	}
	// There is no scope but that of the whole unit.
	const scope = 0x10
	r.prout(a, spc.SAProutReserve, scope|spc.PRWriteExclusive, keyA, 0).illegal(spc.ASCInvalidFieldInCDB)
	r.prout(a, spc.SAProutRelease, scope|spc.PRWriteExclusive, keyA, 0).illegal(spc.ASCInvalidRelease)
	r.prout(a, spc.SAProutPreempt, scope|spc.PRWriteExclusive, keyA, keyA).illegal(spc.ASCInvalidFieldInCDB)
	now := lu.vol.Reservations()
	if now != before { // a snapshot does not change
		t.Errorf("it was %+v, and is %+v", before, now)
	}

	// A registrant that does not hold the reservation releases nothing, and moves nothing.
	r.prout(b, spc.SAProutRegister, 0, 0, keyB).good()
	r.prout(b, spc.SAProutRelease, spc.PRWriteExclusive, keyB, 0).good()
	conflict(move(b, func(m *spc.RegisterMove) {
		m.Key, m.TransportID = keyB, spc.AppendTransportID(nil, "iqn.2026-11.test:c,i,0x000000000001")
	}))
	if k, typ := r.holder(a); k != keyA || typ != spc.PRWriteExclusive {
		t.Errorf("held by %x, %v", k, typ)
	}
	// Where everybody holds it nobody can move it.
	r.prout(a, spc.SAProutRelease, spc.PRWriteExclusive, keyA, 0).good()
	conflict(move(a, func(m *spc.RegisterMove) {})) // nothing is held
	r.prout(a, spc.SAProutReserve, spc.PRWriteExclusiveAllRegistrant, keyA, 0).good()
	conflict(move(a, func(m *spc.RegisterMove) {}))
}
