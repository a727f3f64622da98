package nvmf

import (
	"context"
	"errors"
	"fmt"

	"softiser/initiator/blockio"
	"softiser/internal/nvme"
)

// Reservations of a namespace (NVM Express 1.4 §8.8), as blockio.Reserver has them. They are
// commands of an I/O queue and act for the host, whose identifier the registration belongs to.

var _ blockio.Reserver = (*Namespace)(nil)

// reportLen is the longest report that is asked for: 255 registrants.
const reportLen = 16 << 10

// Register implements blockio.Reserver.
func (n *Namespace) Register(ctx context.Context, r blockio.Registration) error {
	persist := uint8(nvme.PersistOff)
	if r.Persist {
		persist = nvme.PersistOn
	}
	register := func(action uint8, ignore bool) error {
		var s nvme.SQE
		s.NewReservation(nvme.OpReservationRegister, n.id, action, nvme.ReservationNone, ignore).SetPersist(persist)
		return n.raw(ctx, &s, nvme.AppendKeys(nil, r.Key, r.NewKey))
	}
	switch {
	case r.NewKey == 0:
		return register(nvme.UnregisterKey, r.Ignore)
	case r.Ignore:
		// Who is not registered has no key to replace.
		if err := register(nvme.ReplaceKey, true); !errors.Is(err, blockio.ErrReservation) {
			return err
		}
		return register(nvme.RegisterKey, false)
	case r.Key == 0:
		return register(nvme.RegisterKey, false)
	}
	return register(nvme.ReplaceKey, false)
}

// Reserve implements blockio.Reserver.
func (n *Namespace) Reserve(ctx context.Context, key uint64, t blockio.ReservationType) error {
	return n.reserve(ctx, nvme.OpReservationAcquire, nvme.AcquireReservation, t, key, 0)
}

// Unreserve implements blockio.Reserver.
func (n *Namespace) Unreserve(ctx context.Context, key uint64, t blockio.ReservationType) error {
	return n.reserve(ctx, nvme.OpReservationRelease, nvme.ReleaseReservation, t, key)
}

// Preempt implements blockio.Reserver.
func (n *Namespace) Preempt(ctx context.Context, p blockio.Preemption) error {
	action := uint8(nvme.PreemptReservation)
	if p.Abort {
		action = nvme.PreemptAndAbort
	}
	return n.reserve(ctx, nvme.OpReservationAcquire, action, p.Type, p.Key, p.Victim)
}

// ClearReservations implements blockio.Reserver.
func (n *Namespace) ClearReservations(ctx context.Context, key uint64) error {
	return n.reserve(ctx, nvme.OpReservationRelease, nvme.ClearReservation, blockio.NoReservation, key)
}

func (n *Namespace) reserve(ctx context.Context, op nvme.Opcode, action uint8, t blockio.ReservationType, keys ...uint64) error {
	var s nvme.SQE
	s.NewReservation(op, n.id, action, nvme.ReservationType(t), false) // the numbers are the same
	return n.raw(ctx, &s, nvme.AppendKeys(nil, keys...))
}

// Reservations implements blockio.Reserver.
func (n *Namespace) Reservations(ctx context.Context) (*blockio.Reservations, error) {
	var s nvme.SQE
	b := make([]byte, min(reportLen, n.geo.Load().maxIO))
	s.NewReservationReport(n.id, uint32(len(b)))
	if err := n.raw(ctx, &s, b); err != nil {
		return nil, err
	}
	st, err := nvme.ParseReservationState(b)
	if err != nil {
		return nil, fmt.Errorf("nvmf: %w", err)
	}
	r := &blockio.Reservations{Generation: st.Generation, Type: blockio.ReservationType(st.Type), Persist: st.Persist}
	for _, g := range st.Registrants {
		r.Registrants = append(r.Registrants, blockio.Registrant{Key: g.Key, Holder: g.Holder, Name: g.HostID.String()})
	}
	return r, nil
}

// raw runs a command with its data and waits for its end.
func (n *Namespace) raw(ctx context.Context, s *nvme.SQE, data []byte) error {
	return n.Do(ctx, &blockio.Request{Op: blockio.OpSQE, SQE: s[:], Buf: data})
}
