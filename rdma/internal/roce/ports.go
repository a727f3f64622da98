package roce

import (
	"math/rand/v2"
	"sync/atomic"
)

// The ports here are those of rdma_cm, which name services within an address; on the wire
// everything goes to UDP port 4791.

// firstEphemeral is the first of the ports that are handed out (RFC 6335 §6).
const firstEphemeral = 0xc000

// sources counts the source ports that were handed out, beginning anywhere.
var (
	sources     atomic.Uint32
	firstSource = rand.Uint32()
)

// sourcePort is the port of this side in a request. Each requester has one of its own, by
// which the peer tells a request that is repeated from that of another requester.
func sourcePort() uint16 {
	return uint16(firstEphemeral + (firstSource+sources.Add(1))%(1<<16-firstEphemeral))
}

// bind calls listen with the port that is wanted, or, if that is 0, with ephemeral ports until
// one is free. It returns the port that listen has taken.
func bind(want uint16, listen func(port uint16) error) (port uint16, err error) {
	if want != 0 {
		return want, listen(want)
	}
	const tries = 65
	for range tries {
		port = uint16(firstEphemeral + rand.IntN(1<<16-firstEphemeral))
		if err = listen(port); err == nil {
			return port, nil
		}
	}
	return 0, err
}
