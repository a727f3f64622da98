package nvmf

import (
	"slices"

	"softiser/internal/nvme"
	"softiser/target/volume"
)

// protectRow is Set Features with Namespace Write Protection Config.
var protectRow = ioCommand{access: volume.Writes, heals: volume.Protections, run: func(r volumeRequest) {
	r.resume = func(r volumeRequest) { protectRequest{r}.now() }
	r.ns.vol.All(&r.Op)
}}

// anyProtects reports whether one of the namespaces can be write protected.
func (s *subsystem) anyProtects() bool {
	return slices.ContainsFunc(s.list(), func(n *namespace) bool { return n.vol.MayProtect() })
}

// protectRequest is a request that changes a namespace's write protection.
type protectRequest struct{ volumeRequest }

// set sets or lifts the write protection of a namespace when no write is under way.
func (r protectRequest) set(v uint32) {
	const most = 1 // no protection until power loss, nor for ever
	if v > most {
		r.end(nvme.InvalidField | nvme.DoNotRetry)
		return
	}
	if s := r.check(&protectRow); s != nvme.Success {
		r.end(s)
		return
	}
	r.admit()
}

// now runs with every block held. What something else protects cannot be lifted.
func (r protectRequest) now() {
	on, others := r.sqe().Features().Value() == 1, r.ns.gates()&(volume.ReadOnly|volume.WriteProtected)
	switch {
	case r.ns.vol.Forbids(&r.q.ctrl.client, volume.Writes):
		r.end(nvme.ReservationConflict | nvme.DoNotRetry)
	case !on && others != 0, !r.ns.vol.MayProtect():
		r.end(nvme.FeatureNotChangeable | nvme.DoNotRetry)
	default:
		s := nvme.Success
		if err := r.ns.vol.Protect(on); err != nil {
			s = r.ns.tell(err, nvme.InternalError)
		}
		r.end(s)
	}
}
