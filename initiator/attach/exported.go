package attach

import "softiser/initiator/blockio"

// exported is the volume as those who use the attachment have it. While the kernel's device is taken back, a flush that
// nobody is there to answer, and that has nothing to make durable, ends well at once: the kernel sends one whatever
// has been written, and waits for its end.
type exported struct {
	LUN
	a *Attachment
}

// SubmitBatch implements nbd.LUN.
func (e exported) SubmitBatch(rs []*blockio.Request) {
	if !e.a.takenBack.Load() || !e.a.idle() {
		e.LUN.SubmitBatch(rs)
		return
	}
	var needless, rest []*blockio.Request
	for _, r := range rs {
		if r.Op == blockio.OpFlush && e.a.nexus.Cache.Spares(r.Flusher) {
			needless = append(needless, r)
		} else {
			rest = append(rest, r)
		}
	}
	if len(rest) > 0 {
		e.LUN.SubmitBatch(rest)
	}
	end(needless, nil)
}
