package nvmf

import (
	"errors"

	"softiser/internal/nvme"
	"softiser/target/volume"
)

// Format NVM makes every block of a namespace zero; see volume/rewrite.go. There is one
// LBA format, the volume's. With a secure erase of user data the blocks are written over,
// or erased by a device that can; nothing is encrypted, so there is no key to change.

var formatRow = ioCommand{access: volume.Writes, heals: volume.Corrupt, run: func(r volumeRequest) {
	r.resume = func(r volumeRequest) { rewriteRequest{r}.formatNow() }
	r.ns.vol.All(&r.Op)
}}

// rewriteRequest is a request that makes a volume anew: Format NVM, Sanitize.
type rewriteRequest struct{ volumeRequest }

// format checks a Format NVM command and begins to rewrite the namespace.
func (r rewriteRequest) format() {
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
func (r rewriteRequest) formatNow() {
	end, s := r.rewrite(volume.Rewrite{Kind: volume.Format, Passes: 1, Secure: r.sqe().Format().SecureErase() == nvme.SecureEraseUser})
	if s != nvme.Success {
		r.end(s)
		return
	}
	r.resume = func(r volumeRequest) {
		if err := end.Err(); err != nil {
			r.end(r.ns.tell(err, nvme.WriteFault))
			return
		}
		r.end(nvme.Success)
	}
	if !r.ns.vol.Await(&r.Op, end) {
		r.resume(r.volumeRequest)
	}
}

// rewrite begins o with every block held.
func (r rewriteRequest) rewrite(o volume.Rewrite) (*volume.Outcome, nvme.Status) {
	if s := r.forbidden(); s != nvme.Success {
		return nil, s
	}
	end, err := r.ns.vol.Rewriter.Begin(o)
	switch {
	case errors.Is(err, volume.ErrRewriting):
		return nil, rewritingStatus(r.ns.gates())
	case errors.Is(err, volume.ErrRestricted):
		return nil, nvme.SanitizeFailed | nvme.DoNotRetry
	case err != nil:
		return nil, r.ns.tell(err, nvme.InternalError) // it could not be saved
	}
	return end, nvme.Success
}

// rewritingStatus is for a rewrite that another one keeps from beginning. That may have ended since: the command may
// be tried again all the same.
func rewritingStatus(g volume.Gate) nvme.Status {
	if g&volume.Formatting != 0 {
		return nvme.FormatInProgress
	}
	return nvme.SanitizeInProgress
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
