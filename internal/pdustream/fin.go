package pdustream

import (
	"time"

	"softiser/internal/sockio"
)

// Fin is the end of a connection in good order: FIN behind the last PDU, and a time in which the
// peer is to close its side. The connection's lock guards it.
type Fin struct {
	begun bool
	owed  bool      // it has not gone: the layer below the connection has something to say before
	late  time.Time // when begun: from then on the peer is not listened to any more
}

// Begun reports whether Send has been called.
func (f *Fin) Begun() bool { return f.begun }

// Due reports whether Send has something to do.
func (f *Fin) Due() bool { return !f.begun || f.owed }

// Late reports whether the peer's time is over.
func (f *Fin) Late() bool { return f.begun && time.Now().After(f.late) }

// Send sends FIN, from when on the peer has as long as linger. false: the socket is full, and Send
// is to be called again when there is room.
func (f *Fin) Send(sk *sockio.Conn, linger time.Duration) bool {
	if !f.begun {
		f.begun = true
		f.late = time.Now().Add(linger)
		sk.SetReadDeadline(f.late)
	}
	if f.owed = sockio.Finish(sk) == sockio.ErrAgain; f.owed {
		return false
	}
	_ = sk.CloseWrite()
	return true
}
