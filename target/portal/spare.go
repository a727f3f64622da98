package portal

import (
	"net"
	"os"
)

// spareDescriptor is kept for the moment when there is no other left: with it a
// connection can be accepted and turned away, instead of being left to wait.
type spareDescriptor struct{ f *os.File }

func (s *spareDescriptor) take() {
	if s.f == nil {
		s.f, _ = os.Open(os.DevNull) // without it, turning away has to wait
	}
}

func (s *spareDescriptor) held() bool { return s.f != nil }

func (s *spareDescriptor) free() {
	if s.f != nil {
		s.f.Close()
		s.f = nil
	}
}

// turnAway refuses a connection before anything has been read from it.
func (c *Conn) turnAway() {
	if c.Request != nil {
		_ = c.Request.Reject(nil)
		return
	}
	turnAway(c.Net)
}

// turnAway closes a connection at once and without the memory that the kernel keeps of
// one that has been closed in an orderly way.
func turnAway(nc *net.TCPConn) {
	_ = nc.SetLinger(0) // a reset is a courtesy
	nc.Close()
}
