package attach

import (
	"sync"
	"time"

	"softiser/initiator/blockio"
)

// exported is the volume as those who use the attachment have it. While the kernel's device is taken back, a flush that
// nobody is there to answer, and that has nothing to make durable, ends well at once: the kernel sends one whatever
// has been written, and waits for its end.
type exported struct {
	LUN
	a *Attachment
}

// SubmitBatch implements nbd.LUN.
func (e exported) SubmitBatch(rs []*blockio.Request) {
	if !e.a.takenBack.Load() {
		e.LUN.SubmitBatch(rs)
		return
	}
	var needless, rest []*blockio.Request
	for _, r := range rs {
		switch {
		case r.Op != blockio.OpFlush || !e.a.nexus.Cache.Spares(r.Flusher):
			rest = append(rest, r)
		case e.a.idle():
			needless = append(needless, r)
		default:
			rest = append(rest, e.untilIdle(r))
		}
	}
	if len(rest) > 0 {
		e.LUN.SubmitBatch(rest)
	}
	end(needless, nil)
}

// untilIdle returns a flush to be sent in the place of r, which ends with it, or when it turns out that nobody is there to answer: a
// target that has gone may not have been missed yet.
func (e exported) untilIdle(r *blockio.Request) *blockio.Request {
	var first sync.Once
	over, client := make(chan struct{}), r.Flusher // r is its owner's again when it has ended
	go func() {
		look := time.NewTicker(lookEvery)
		defer look.Stop()
		for {
			select {
			case <-over:
				return
			case <-look.C:
				if e.a.idle() && e.a.nexus.Cache.Spares(client) {
					first.Do(func() { end([]*blockio.Request{r}, nil) })
					return
				}
			}
		}
	}()
	return &blockio.Request{Op: r.Op, Off: r.Off, Len: r.Len, Flusher: client, Done: func(s *blockio.Request) {
		close(over)
		first.Do(func() {
			r.Status, r.Sent, r.Residual = s.Status, s.Sent, s.Residual
			end([]*blockio.Request{r}, s.Err)
		})
	}}
}
