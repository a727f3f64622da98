// Package ports finds ports for servers that a harness starts.
package ports

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
)

// first and last are below the range that the system hands out itself: a port of that range
// that was free a moment ago would now and then be a client's by the time it is used.
const first, last = 20000, 32000

var next = func() *atomic.Uint32 {
	var n atomic.Uint32
	n.Store(rand.Uint32N(last - first)) // another harness may run beside this one
	return &n
}()

// Free returns a port of 127.0.0.1 that nobody listens on, each once. It panics if there is none.
func Free() int {
	var err error
	for range last - first {
		port := first + int(next.Add(1))%(last-first)
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	panic(fmt.Errorf("no free port of 127.0.0.1 from %d to %d: %w", first, last-1, err))
}
