package initiator

import (
	"context"
	"errors"
	"fmt"

	"softiser/initiator/blockio"
	"softiser/internal/spc"
)

// Persistent reservations of a LUN (SPC-4 §5.12), as blockio.Reserver has them. They belong
// to the initiator port of the session: the initiator's name with Config.ISID. What
// registers with an ISID made up at random is registered under it for ever, which nobody
// else can be.

var _ blockio.Reserver = (*LUN)(nil)

// Register implements blockio.Reserver.
func (l *LUN) Register(ctx context.Context, r blockio.Registration) error {
	sa := byte(spc.SAProutRegister)
	if r.Ignore {
		sa = spc.SAProutRegisterIgnore
	}
	return l.persistOut(ctx, sa, blockio.NoReservation, spc.PersistOut{Key: r.Key, ActionKey: r.NewKey, APTPL: r.Persist})
}

// Reserve implements blockio.Reserver.
func (l *LUN) Reserve(ctx context.Context, key uint64, t blockio.ReservationType) error {
	return l.persistOut(ctx, spc.SAProutReserve, t, spc.PersistOut{Key: key})
}

// Unreserve implements blockio.Reserver.
func (l *LUN) Unreserve(ctx context.Context, key uint64, t blockio.ReservationType) error {
	return l.persistOut(ctx, spc.SAProutRelease, t, spc.PersistOut{Key: key})
}

// Preempt implements blockio.Reserver.
func (l *LUN) Preempt(ctx context.Context, p blockio.Preemption) error {
	sa := byte(spc.SAProutPreempt)
	if p.Abort {
		sa = spc.SAProutPreemptAbort
	}
	return l.persistOut(ctx, sa, p.Type, spc.PersistOut{Key: p.Key, ActionKey: p.Victim})
}

// ClearReservations implements blockio.Reserver.
func (l *LUN) ClearReservations(ctx context.Context, key uint64) error {
	return l.persistOut(ctx, spc.SAProutClear, blockio.NoReservation, spc.PersistOut{Key: key})
}

// reservationTypes are SCSI's types of reservations by ours.
var reservationTypes = [...]spc.PRType{
	blockio.NoReservation: spc.PRNone, blockio.WriteExclusive: spc.PRWriteExclusive, blockio.ExclusiveAccess: spc.PRExclusiveAccess,
	blockio.WriteExclusiveRegistrants: spc.PRWriteExclusiveRegistrants, blockio.ExclusiveAccessRegistrants: spc.PRExclusiveAccessRegistrants,
	blockio.WriteExclusiveAll: spc.PRWriteExclusiveAllRegistrant, blockio.ExclusiveAccessAll: spc.PRExclusiveAccessAllRegistr,
}

func reservationType(t spc.PRType) blockio.ReservationType {
	for i, p := range reservationTypes {
		if p == t {
			return blockio.ReservationType(i)
		}
	}
	return blockio.NoReservation
}

// persistOut runs PERSISTENT RESERVE OUT (SPC-4 §6.15).
func (l *LUN) persistOut(ctx context.Context, sa byte, t blockio.ReservationType, p spc.PersistOut) error {
	if int(t) >= len(reservationTypes) {
		return fmt.Errorf("%w: %v", ErrInvalid, t)
	}
	_, err := l.raw(ctx, &Request{Op: OpCDB, CDB: spc.AppendPersistOut(nil, sa, reservationTypes[t], spc.PersistOutLen), Buf: p.Append(nil)})
	return err
}

// persistIn runs PERSISTENT RESERVE IN (SPC-4 §6.14).
func (l *LUN) persistIn(ctx context.Context, sa byte) ([]byte, error) {
	const alloc = 32 << 10
	return l.raw(ctx, &Request{Op: OpCDB, CDB: spc.AppendPersistIn(nil, sa, alloc), Buf: make([]byte, alloc), DataIn: true})
}

// Reservations implements blockio.Reserver. A target without READ FULL STATUS, which is
// optional, tells keys alone.
func (l *LUN) Reservations(ctx context.Context) (*blockio.Reservations, error) {
	b, err := l.persistIn(ctx, spc.SAPrinReadRes)
	if err != nil {
		return nil, err
	}
	generation, key, typ, err := spc.ParseReadReservation(b)
	if err != nil {
		return nil, fmt.Errorf("initiator: READ RESERVATION: %w", err)
	}
	r := &blockio.Reservations{Generation: generation, Type: reservationType(typ)}
	if b, err = l.persistIn(ctx, spc.SAPrinCapabilities); err == nil {
		r.Persist = len(b) > 3 && b[3]&1 != 0 // PTPL_A
	} else if !refused(err) {
		return nil, err
	}
	switch b, err = l.persistIn(ctx, spc.SAPrinFullStatus); {
	case err == nil:
		list, err := spc.ParseFullStatus(b)
		if err != nil {
			return nil, fmt.Errorf("initiator: READ FULL STATUS: %w", err)
		}
		for _, x := range list {
			r.Registrants = append(r.Registrants, blockio.Registrant{Key: x.Key, Holder: x.Holder, Name: x.Port, Port: x.RelativePort})
		}
		return r, nil
	case !refused(err):
		return nil, err
	}
	if b, err = l.persistIn(ctx, spc.SAPrinReadKeys); err != nil {
		return nil, err
	}
	_, keys, err := spc.ParseReadKeys(b)
	if err != nil {
		return nil, fmt.Errorf("initiator: READ KEYS: %w", err)
	}
	for _, k := range keys {
		r.Registrants = append(r.Registrants, blockio.Registrant{Key: k, Holder: typ.AllRegistrants() || typ != spc.PRNone && k == key})
	}
	return r, nil
}

// refused reports that the device server does not have what was asked for.
func refused(err error) bool {
	var se *SenseError
	return errors.As(err, &se) && se.Sense.Key == spc.KeyIllegalRequest
}

// raw runs a command of ours and returns the data that came. Unit attentions are not its
// caller's affair: the command has not been carried out, and is sent again.
func (l *LUN) raw(ctx context.Context, r *Request) ([]byte, error) {
	for tries := 0; ; tries++ {
		err := l.Do(ctx, r)
		var se *SenseError
		switch {
		case err == nil:
			return r.Buf[:int64(len(r.Buf))-r.Residual], nil
		case r.Status == byte(spc.StatusReservationConflict):
			return nil, fmt.Errorf("%w: %w", ErrReservation, err)
		case tries == maxAgain || !errors.As(err, &se) || se.Sense.Key != spc.KeyUnitAttention:
			return nil, err
		}
	}
}
