package scsi

import (
	"encoding/binary"

	"softiser/internal/spc"

	"softiser/target/volume"
)

// cmdPersistIn is PERSISTENT RESERVE IN (SPC-4 §6.14). All its answers but REPORT
// CAPABILITIES begin with the generation and the length of what follows.
func cmdPersistIn(t *Task) {
	if !t.lu.vol.Away() {
		t.tellReservations(t.lu.vol.Reservations())
		return
	}
	t.toWorker(func(t *Task) {
		if r, err := t.lu.vol.ReservationsElsewhere(); err == nil {
			t.tellReservations(r)
		} else {
			t.refuse(volume.Closed)
		}
	})
}

// tellReservations ends the task with what it asks of r.
func (t *Task) tellReservations(r *volume.Reservations) {
	alloc := uint32(binary.BigEndian.Uint16(t.CDB[7:]))
	be := binary.BigEndian
	b := t.data.get(volume.BufferSizes[0])[:0]
	if t.CDB[1]&0x1F == spc.SAPrinCapabilities {
		t.reply(t.lu.prCapabilities(b, r), alloc)
		return
	}
	b = be.AppendUint32(b, r.Generation)
	b = append(b, 0, 0, 0, 0)
	switch t.CDB[1] & 0x1F {
	case spc.SAPrinReadKeys:
		for _, k := range r.Registrants() {
			reg, _ := r.Find(k)
			b = be.AppendUint64(b, reg.Key)
		}
	case spc.SAPrinReadRes:
		if r.Type != volume.NoReservation {
			key := uint64(0) // all registrants hold it: no single key
			if !r.Type.AllRegistrants() {
				reg, _ := r.Find(r.Holder)
				key = reg.Key
			}
			b = be.AppendUint64(b, key)
			b = append(b, 0, 0, 0, 0, 0, byte(r.Type), 0, 0)
		}
	case spc.SAPrinFullStatus:
		for _, k := range r.Registrants() {
			b = appendFullStatus(b, r, k)
		}
	}
	be.PutUint32(b[4:], uint32(len(b)-8))
	t.reply(b, alloc)
}

// appendFullStatus adds the descriptor of READ FULL STATUS of one registrant.
func appendFullStatus(b []byte, r *volume.Reservations, k volume.Registrant) []byte {
	reg, _ := r.Find(k)
	f := spc.FullStatus{Key: reg.Key, AllPorts: reg.AllPorts, RelativePort: k.Port, Port: k.Initiator}
	if r.Holds(k) {
		f.Holder, f.Type = true, spc.PRType(r.Type)
	}
	return f.Append(b)
}

// prCapabilities is REPORT CAPABILITIES: CRH, SIP_C, ATP_C, and PTPL_C where
// there is somewhere to keep state; all six types.
func (lu *LU) prCapabilities(b []byte, r *volume.Reservations) []byte {
	c, m := byte(0x1C), byte(0x80)
	if lu.vol.Keeps() {
		c |= 0x01
		if r.Persist {
			m |= 0x01
		}
	}
	return append(b, 0, 8, c, m, 0xEA, 0x01, 0, 0)
}
