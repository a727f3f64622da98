package bench

import (
	"context"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
)

// LUN is the part of a blockio.Volume that a load needs.
type LUN interface {
	// Submit starts a request; Done is called exactly once for it.
	Submit(*blockio.Request)
	Info() blockdev.Info
	// Names are the world-wide names of the volume, the best first; see blockio.Volume.
	Names() []string
	Stats() blockio.Stats
	// NewFlusher makes a user of the volume that is told by itself of a lost cache.
	NewFlusher() *blockio.Flusher
	Close() error
}

// OpenOptions is what a job asks of the sessions that it opens.
type OpenOptions struct {
	Depth    int           // requests in flight at once on this session
	MaxIO    int           // bytes of the largest request
	BusyPoll time.Duration // spin this long before sleeping; zero: as the command's options say
}

// Opener opens a session to the volume at url.
type Opener func(ctx context.Context, url string, o OpenOptions) (LUN, error)
