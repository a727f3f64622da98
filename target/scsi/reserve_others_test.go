package scsi

import (
	"encoding/binary"
	"testing"

	"softiser/internal/spc"
)

// TestRegisterForARegistered: a registration for others that names one who is registered
// already changes nobody's (SPC-4 §5.12.7.3).
func TestRegisterForARegistered(t *testing.T) {
	r := newRig(t, Config{})
	a, b := r.nx[0], r.nx[1]
	r.prout(b, spc.SAProutRegister, 0, 0, keyB).good()
	before, _ := r.keys(b)
	ids := spc.AppendTransportID(nil, b.client.ID.Initiator)
	list := binary.BigEndian.AppendUint32((&spc.PersistOut{ActionKey: keyA, SpecIPT: true}).Append(nil), uint32(len(ids)))
	list = append(list, ids...)
	r.on(a, 0, spc.AppendPersistOut(nil, spc.SAProutRegister, 0, uint32(len(list))), list, 0).is(spc.StatusReservationConflict)
	if now, k := r.keys(b); now != before || len(k) != 1 || k[0] != keyB {
		t.Errorf("generation %d, then %d; keys %x", before, now, k)
	}
	r.prout(b, spc.SAProutReserve, spc.PRWriteExclusive, keyB, 0).good()
}

// TestLastOfAllRegistrants: a reservation that all registrants hold ends with the last one.
func TestLastOfAllRegistrants(t *testing.T) {
	r := newRig(t, Config{})
	a, b := r.nx[0], r.nx[1]
	write := spc.AppendWrite(nil, 0, 1, false)
	r.prout(a, spc.SAProutRegister, 0, 0, keyA).good()
	r.prout(b, spc.SAProutRegister, 0, 0, keyB).good()
	r.prout(a, spc.SAProutReserve, spc.PRWriteExclusiveAllRegistrant, keyA, 0).good()
	r.prout(a, spc.SAProutRegister, 0, keyA, 0).good()
	r.on(a, 0, write, make([]byte, 512), 0).is(spc.StatusReservationConflict)
	r.prout(b, spc.SAProutRegister, 0, keyB, 0).good()
	r.on(a, 0, write, make([]byte, 512), 0).good()
}
