package nvmf

import (
	"errors"

	"softiser/internal/nvme"
	"softiser/target/volume"
)

// Format NVM makes every block of a namespace zero; see volume/rewrite.go. There is one
// LBA format, the volume's. With a secure erase of user data the blocks are written over,
// or erased by a device that can; nothing is encrypted, so there is no key to change.

var formatRow = ioCommand{access: volume.Writes, heals: volume.Corrupt, run: func(r *request) {
	r.job = func(r *request) { adminRequest{r}.formatNow() }
	r.ns.vol.All(&r.Op)
}}

func (r adminRequest) format() {
	q := r.sqe().Format()
	switch {
	case !r.q.ctrl.sub.anyRewrites():
		r.end(nvme.InvalidOpcode | nvme.DoNotRetry)
		return
	case r.sqe().NSID() == nvme.NSIDAll: // FNA: not supported
		r.end(nvme.InvalidField | nvme.DoNotRetry)
		return
	case q.LBAFormat() != 0 || q.Metadata() != 0:
		r.end(nvme.InvalidFormat | nvme.DoNotRetry)
		return
	case q.SecureErase() > nvme.SecureEraseUser:
		r.end(nvme.InvalidField | nvme.DoNotRetry)
		return
	}
	s := r.check(&formatRow)
	if s == nvme.Success && !r.ns.vol.Rewriter.Offered() {
		s = nvme.OperationDenied | nvme.DoNotRetry
	}
	if s != nvme.Success {
		r.end(s)
		return
	}
	r.admit()
}

// formatNow runs with every block held.
func (r adminRequest) formatNow() {
	end, s := r.rewrite(volume.Rewrite{Kind: volume.Format, Passes: 1, Secure: r.sqe().Format().SecureErase() == nvme.SecureEraseUser})
	if s != nvme.Success {
		r.end(s)
		return
	}
	r.job = func(r *request) {
		if end.Err() != nil {
			r.end(nvme.WriteFault)
			return
		}
		r.end(nvme.Success)
	}
	if !r.ns.vol.Await(&r.Op, end) {
		r.job(r.request)
	}
}

// rewrite begins o with every block held.
func (r adminRequest) rewrite(o volume.Rewrite) (*volume.Outcome, nvme.Status) {
	if s := r.forbidden(); s != nvme.Success {
		return nil, s
	}
	end, err := r.ns.vol.Rewriter.Begin(o)
	switch {
	case errors.Is(err, volume.ErrRewriting):
		return nil, gateStatus(r.ns.gates() & (volume.Sanitizing | volume.Formatting))
	case errors.Is(err, volume.ErrRestricted):
		return nil, nvme.SanitizeFailed | nvme.DoNotRetry
	case err != nil:
		return nil, nvme.InternalError // it could not be saved
	}
	return end, nvme.Success
}

// anyRewrites reports whether some namespace can be formatted.
func (s *subsystem) anyRewrites() bool {
	for _, n := range s.list() {
		if n.vol.Rewriter.Offered() {
			return true
		}
	}
	return false
}

// protectRow is Set Features with Namespace Write Protection Config.
var protectRow = ioCommand{access: volume.Writes, heals: volume.Protections, run: func(r *request) {
	r.job = func(r *request) { adminRequest{r}.protectNow() }
	r.ns.vol.All(&r.Op)
}}

// protect sets or lifts the write protection of a namespace when no write is under way.
func (r adminRequest) protect(v uint32) {
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

// protectNow runs with every block held. What something else protects cannot be lifted.
func (r adminRequest) protectNow() {
	on, others := r.sqe().Features().Value() == 1, r.ns.gates()&(volume.ReadOnly|volume.WriteProtected)
	switch {
	case r.ns.vol.Forbids(&r.q.ctrl.client, volume.Writes):
		r.end(nvme.ReservationConflict | nvme.DoNotRetry)
	case !on && others != 0, !r.ns.vol.MayProtect():
		r.end(nvme.FeatureNotChangeable | nvme.DoNotRetry)
	case r.ns.vol.Protect(on) != nil:
		r.end(nvme.InternalError)
	default:
		r.end(nvme.Success)
	}
}
