package attach

import (
	"errors"

	"softiser/initiator/blockio"
)

// An ublk device outlives its process, and with it what the device's users take for written. When the process
// is killed the account of the target's cache goes with it. So that a loss of that cache until the next process is
// there is not forgotten, the record says which life of the cache it was.

// noteCaches puts into r the lives of the target's caches that may hold writes of the ublk device which no flush has
// made durable.
func (a *Attachment) noteCaches(r *Record) {
	if a.client == nil || !a.lun.Info().WriteCache {
		return
	}
	k := a.nexus.Cache.Carry()
	if a.client.Told() != k.Losses {
		return // a flush of the device is to fail yet: by the life before, the next process finds that
	}
	r.Caches = nil
	for _, e := range k.Epochs {
		if e.ID != [16]byte{} {
			r.Caches = append(r.Caches, e.ID)
		}
	}
}

// cache is the account of which r, of a process that was killed, tells. How much it held nobody knows.
func (r *Record) cache() *blockio.Cache {
	var k blockio.CarriedCache
	for _, id := range r.Caches {
		k.Epochs = append(k.Epochs, blockio.CarriedEpoch{ID: id, Held: 1})
	}
	return blockio.ResumeCache(k)
}

// opened has the account of another process follow vol, which is open now.
func (n *Nexus) opened(vol LUN, tell func(error)) {
	if p, one := vol.(blockio.Path); one && n.Cache.Only(p.Epoch()) {
		tell(errors.New("the target came back without its cache; the next flush fails"))
	}
}
