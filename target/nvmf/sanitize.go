package nvmf

import (
	"errors"
	"slices"

	"softiser/internal/nvme"
	"softiser/target/volume"
)

// Sanitize concerns every namespace of the subsystem: each volume is rewritten as SANITIZE
// of SCSI does it, by the same machinery, and goes on after a restart. The subsystem's
// state is that of its volumes together:
//
//	one of them runs ─▶ in progress   one has failed ─▶ failed   all were ─▶ completed   else never
//
// The command begins it on one volume after the other and does not wait for the end, which
// an event tells. Block erases deallocate, so that what asks for the contrary is refused.

var sanitizeRow = ioCommand{access: volume.Writes, heals: volume.SanitizeFailed}

// sanitizes tells what the subsystem offers of Sanitize: SANICAP, 0 if it has none.
func (s *subsystem) sanitizes() uint32 {
	l := s.list()
	switch {
	case len(l) == 0 || slices.ContainsFunc(l, func(n *namespace) bool { return !n.vol.Rewriter.Offered() || n.cfg.ReadOnly }):
		return 0
	case slices.ContainsFunc(l, func(n *namespace) bool { return !n.vol.Rewriter.OffersErase() }):
		return nvme.SanitizesByOverwrite | nvme.SanitizeLeavesMedia
	}
	return nvme.SanitizesByOverwrite | nvme.SanitizesByErase | nvme.SanitizeDeallocates | nvme.SanitizeLeavesMedia
}

// sanitize checks the command against what every namespace allows, before the first of
// them is overwritten or erased.
func (r rewriteRequest) sanitize() {
	q, sub := r.sqe().Sanitize(), r.q.ctrl.sub
	can := sub.sanitizes()
	o := volume.Rewrite{Kind: volume.Overwrite, Passes: q.Passes(), Unrestricted: q.Has(nvme.SanitizeUnrestricted), Invert: q.Has(nvme.SanitizeInvert)}
	p := q.Pattern()
	o.Pattern = []byte{byte(p), byte(p >> 8), byte(p >> 16), byte(p >> 24)}
	bad := q.Has(nvme.SanitizeNoDeallocate) && can&nvme.SanitizeDeallocates != 0
	switch q.Action() {
	case nvme.SanitizeExitFailure:
		if can != 0 {
			r.exitFailure()
			return
		}
	case nvme.SanitizeBlockErase:
		bad = bad || can&nvme.SanitizesByErase == 0
		o = volume.Rewrite{Kind: volume.Erase, Passes: 1, Unrestricted: o.Unrestricted}
	case nvme.SanitizeOverwrite:
	default:
		bad = true
	}
	if can == 0 {
		r.end(nvme.InvalidOpcode | nvme.DoNotRetry)
		return
	}
	if bad {
		r.end(nvme.InvalidField | nvme.DoNotRetry)
		return
	}
	r.row = &sanitizeRow
	for _, n := range sub.list() { // before any of them begins
		if s := r.forbiddenBy(n); s != nvme.Success {
			r.end(s)
			return
		}
	}
	r.sanitizeNext(sub.list(), o)
}

// sanitizeNext begins o on the first of l, and then goes on with the rest.
func (r rewriteRequest) sanitizeNext(l []*namespace, o volume.Rewrite) {
	if len(l) == 0 {
		r.end(nvme.Success)
		return
	}
	n := l[0]
	if !n.place.Use() { // the namespace is being removed
		r.sanitizeNext(l[1:], o)
		return
	}
	r.ns = n
	r.Cover(0, 0, volume.HoldNone)
	r.Client, r.Order = &r.q.ctrl.client, volume.Simple
	now := func(r volumeRequest) {
		_, s := rewriteRequest{r}.rewrite(o)
		if s != nvme.Success || len(l) == 1 {
			r.end(s)
			return
		}
		if !r.leaveVolume() {
			return
		}
		rewriteRequest{r}.sanitizeNext(l[1:], o)
	}
	r.resume = func(r volumeRequest) {
		r.resume = now
		n.vol.All(&r.Op)
	}
	if n.vol.Admit(&r.Op) {
		r.resume(r.volumeRequest)
	}
}

// exitFailure ends the failed state of every volume that is in it, if all may.
func (r rewriteRequest) exitFailure() {
	r.row = &sanitizeRow
	var failed []*namespace
	for _, n := range r.q.ctrl.sub.list() {
		if n.gates()&volume.SanitizeFailed == 0 {
			continue
		}
		if s := r.forbiddenBy(n); s != nvme.Success {
			r.end(s)
			return
		}
		if !n.vol.Rewriter.MayExitFailure() {
			r.end(nvme.SanitizeFailed | nvme.DoNotRetry)
			return
		}
		failed = append(failed, n)
	}
	q := r.q
	go func() { // leaving the failure mode writes to the state folder
		s := nvme.Success
		for _, n := range failed {
			if !n.place.Use() {
				continue
			}
			switch err := n.vol.Rewriter.ExitFailure(); {
			case errors.Is(err, volume.ErrRewriting): // begun since
				s = nvme.SanitizeInProgress
			case err != nil:
				s = n.tell(err, nvme.InternalError)
			}
			n.place.Unuse()
		}
		r.end(s)
		q.Push()
	}()
}

// sanitizeLog is the state of all volumes together.
func (s *subsystem) sanitizeLog() *nvme.SanitizeLog {
	l := nvme.SanitizeLog{Progress: 0xFFFF, State: nvme.SanitizeNever}
	rank := func(s volume.SanitizeStatus) int {
		return slices.Index([]volume.SanitizeStatus{volume.Sanitized, volume.NeverSanitized, volume.SanitizeHasFailed, volume.SanitizeRuns}, s)
	}
	worst := -1
	for _, n := range s.list() {
		o, st, progress := n.vol.Rewriter.LastSanitize()
		if k := rank(st); k < worst || k == worst && progress >= l.Progress {
			continue
		} else {
			worst = k
		}
		l = nvme.SanitizeLog{Progress: 0xFFFF, State: sanitizeStates[st]}
		if st == volume.NeverSanitized {
			continue
		}
		l.Dword10, l.Passes = sanitizeDword10(&o), uint8(o.Passes)
		if st == volume.SanitizeRuns {
			l.Progress, l.Passes = progress, uint8(int(progress)*o.Passes/65536)
		}
		if o.Kind == volume.Erase {
			l.Passes = 0
		}
	}
	return &l
}

var sanitizeStates = [...]nvme.SanitizeState{
	volume.NeverSanitized: nvme.SanitizeNever, volume.Sanitized: nvme.SanitizeDone,
	volume.SanitizeRuns: nvme.SanitizeRuns, volume.SanitizeHasFailed: nvme.SanitizeBroken,
}

// sanitizeDword10 is dword 10 of the command that would do o, whichever wire it came by.
func sanitizeDword10(o *volume.Rewrite) uint32 {
	var flags uint32
	if o.Unrestricted {
		flags |= nvme.SanitizeUnrestricted
	}
	if o.Invert {
		flags |= nvme.SanitizeInvert
	}
	if o.Kind == volume.Erase {
		return nvme.SanitizeDword10(nvme.SanitizeBlockErase, 0, flags)
	}
	return nvme.SanitizeDword10(nvme.SanitizeOverwrite, o.Passes, flags)
}
