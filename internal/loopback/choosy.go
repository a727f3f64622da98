package loopback

import (
	"bufio"
	"io"
	"net"
	"sync"
	"testing"
)

// OnlyMPA is a port in front of the one at addr that takes connections which begin with an MPA Request. Of
// others it waits for more, or hangs up.
func OnlyMPA(t testing.TB, addr string, hangUp bool) string {
	return choosy(t, addr, hangUp, func(mpa bool) bool { return mpa })
}

// NoMPA is OnlyMPA for a port that takes all other connections.
func NoMPA(t testing.TB, addr string, hangUp bool) string {
	return choosy(t, addr, hangUp, func(mpa bool) bool { return !mpa })
}

// choosy is a port in front of the one at addr that looks at how a connection begins.
func choosy(t testing.TB, addr string, hangUp bool, takes func(mpa bool) bool) string {
	t.Helper()
	l := listen(t)
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				in := bufio.NewReader(c)
				first, err := in.Peek(4)
				if err != nil {
					return
				}
				if !takes(string(first) == "MPA ") {
					if !hangUp {
						_, _ = io.Copy(io.Discard, in)
					}
					return
				}
				to, err := net.Dial("tcp", addr)
				if err != nil {
					t.Error(err)
					return
				}
				defer to.Close()
				wg.Go(func() {
					_, _ = io.Copy(c, to)
					c.Close()
				})
				_, _ = io.Copy(to, in)
			})
		}
	})
	return l.Addr().String()
}
