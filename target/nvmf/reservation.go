package nvmf

import (
	"encoding/binary"
	"errors"

	"softiser/internal/nvme"
	"softiser/target/volume"
)

// Reservations are the volume's, whichever wire they came by; here is their NVMe syntax.

// toVolume are the volume's types by NVMe's.
var toVolume = [...]volume.ReservationType{
	nvme.WriteExclusive: volume.WriteExclusive, nvme.ExclusiveAccess: volume.ExclusiveAccess,
	nvme.WriteExclusiveRegistrantsOnly: volume.WriteExclusiveRegistrants, nvme.ExclusiveAccessRegistrants: volume.ExclusiveAccessRegistrants,
	nvme.WriteExclusiveAllRegistrants: volume.WriteExclusiveAll, nvme.ExclusiveAccessAllRegistrants: volume.ExclusiveAccessAll,
}

func volumeType(t nvme.ReservationType) volume.ReservationType {
	if !t.Valid() {
		return volume.NoReservation
	}
	return toVolume[t]
}

func nvmeType(t volume.ReservationType) nvme.ReservationType {
	for n, v := range toVolume {
		if v == t && v != volume.NoReservation {
			return nvme.ReservationType(n)
		}
	}
	return nvme.ReservationNone
}

// reservationRequest is a request with a reservation command.
type reservationRequest struct{ volumeRequest }

// reserveStatus is the status for why a change was refused.
func reserveStatus(err error) nvme.Status {
	switch {
	case err == nil:
		return nvme.Success
	case errors.Is(err, volume.ErrConflict), errors.Is(err, volume.ErrRegistered):
		return nvme.ReservationConflict | nvme.DoNotRetry
	case errors.Is(err, volume.ErrNotKept), errors.Is(err, volume.ErrType), errors.Is(err, volume.ErrOtherType), errors.Is(err, volume.ErrNoVictim):
		return nvme.InvalidField | nvme.DoNotRetry
	}
	return nvme.InternalError // no room, or it could not be saved
}

// noHostID reports a host that has not said who it is, which nobody can register.
func (r reservationRequest) noHostID() bool {
	if r.q.ctrl.hostID != (nvme.HostID{}) {
		return false
	}
	r.end(nvme.InvalidField | nvme.DoNotRetry)
	return true
}

// change carries out a change of reservations on a worker: it may be saved.
func (r reservationRequest) change(n int, f func(r reservationRequest, keys []byte) error) {
	if r.noHostID() {
		return
	}
	r.param(n, func(r *request) {
		volumeRequest{r}.toWorker(func(r volumeRequest) {
			err := f(reservationRequest{r}, r.params)
			r.end(r.ns.tell(err, reserveStatus(err)))
		})
	})
}

func key(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }

// register is Reservation Register (NVM Express 1.4 §6.11) in the terms of the volume's
// reservations.
func (r reservationRequest) register() {
	q := r.sqe().Reservation()
	if q.Action() > nvme.ReplaceKey || q.Persist() == 1 {
		r.end(nvme.InvalidField | nvme.DoNotRetry)
		return
	}
	r.change(nvme.RegisterDataLen, func(r reservationRequest, b []byte) error {
		v, c := r.ns.vol, &r.q.ctrl.client
		mine, member := v.Reservations().Find(c.ID)
		reg := volume.Register{
			Key: key(b, 0), NewKey: key(b, 1), Ignore: q.IgnoreKey(), Persist: q.Persist() == nvme.PersistOn, Keep: q.Persist() == nvme.PersistUnchanged,
		}
		switch q.Action() {
		case nvme.RegisterKey:
			if reg.NewKey == 0 {
				return volume.ErrType
			}
			if member && mine.Key != reg.NewKey {
				return volume.ErrConflict
			}
			reg.Key, reg.Ignore = mine.Key, false
		case nvme.UnregisterKey:
			if !member {
				return volume.ErrConflict
			}
			reg.NewKey = 0
		case nvme.ReplaceKey:
			if !member && !reg.Ignore {
				return volume.ErrConflict
			}
			if reg.NewKey == 0 {
				return volume.ErrType
			}
		}
		return v.Register(c, &reg)
	})
}

func (r reservationRequest) acquire() {
	q := r.sqe().Reservation()
	if q.Action() > nvme.PreemptAndAbort || q.IgnoreKey() || !q.Type().Valid() {
		r.end(nvme.InvalidField | nvme.DoNotRetry)
		return
	}
	if q.Action() == nvme.PreemptAndAbort {
		r.preemptAndAbort()
		return
	}
	r.change(nvme.AcquireDataLen, func(r reservationRequest, b []byte) error {
		v, c := r.ns.vol, &r.q.ctrl.client
		if q.Action() == nvme.AcquireReservation {
			return v.Reserve(c, key(b, 0), volumeType(q.Type()))
		}
		return v.Preempt(c, r.preempt(b))
	})
}

// preempt describes a preemption. Where nobody holds a reservation, and where the
// host's own key is named, NVMe says what SPC-4 does.
func (r reservationRequest) preempt(b []byte) *volume.Preempt {
	return &volume.Preempt{Key: key(b, 0), Victim: key(b, 1), Type: volumeType(r.sqe().Reservation().Type())}
}

// preemptAndAbort ends when the commands of the preempted hosts have ended.
func (r reservationRequest) preemptAndAbort() {
	if r.noHostID() {
		return
	}
	r.param(nvme.AcquireDataLen, func(r *request) {
		volumeRequest{r}.toWorker(func(r volumeRequest) {
			p := reservationRequest{r}.preempt(r.params)
			q := r.q
			p.Except = &r.Op
			p.Ended = func() {
				r.end(nvme.Success)
				q.Push()
			}
			if err := r.ns.vol.Preempt(&r.q.ctrl.client, p); err != nil {
				r.end(r.ns.tell(err, reserveStatus(err)))
			}
		})
	})
}

func (r reservationRequest) unreserve() {
	q := r.sqe().Reservation()
	if q.Action() > nvme.ClearReservation || q.IgnoreKey() {
		r.end(nvme.InvalidField | nvme.DoNotRetry)
		return
	}
	r.change(nvme.ReleaseDataLen, func(r reservationRequest, b []byte) error {
		v, c := r.ns.vol, &r.q.ctrl.client
		if q.Action() == nvme.ClearReservation {
			return v.ClearReservations(c, key(b, 0))
		}
		return v.Unreserve(c, key(b, 0), volumeType(q.Type()))
	})
}

// report tells who is registered, on whichever wire.
func (r reservationRequest) report() {
	q := r.sqe().ReservationReport()
	if !q.Extended() {
		r.end(nvme.HostIDInconsistent | nvme.DoNotRetry)
		return
	}
	have, s := r.hostData()
	if s == nvme.Success && uint64(have) != q.Length() || have > maxTransfer {
		s = nvme.SGLDataLengthInvalid | nvme.DoNotRetry
	}
	if s != nvme.Success {
		r.end(s)
		return
	}
	now := r.ns.vol.Reservations()
	state := nvme.ReservationState{Generation: now.Generation, Type: nvmeType(now.Type), Persist: now.Persist}
	for _, k := range now.Registrants() {
		reg, _ := now.Find(k)
		g := nvme.Registrant{CntlID: nvme.CntlIDDynamic, Holder: now.Holds(k), Key: reg.Key, HostID: hostIDOf(k)}
		state.Registrants = append(state.Registrants, g)
	}
	if r.room(int(have)) {
		r.answer(state.AppendTo(nil))
	}
}
