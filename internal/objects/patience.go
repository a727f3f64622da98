package objects

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// patience is how long a store may neither take nor send a byte while we wait for one of both. It is more than
// http.Transport waits for the beginning of an answer, and keeps idle connections.
const patience = 2 * time.Minute

// dial makes a connection to a store.
type dial func(ctx context.Context, network, address string) (net.Conn, error)

// connect is what makes connections, given how they are made. A variable so that tests have a store without a network.
var connect = func(d dial) dial { return d }

// patiently has connections end with an error when nothing moves on them.
func patiently(d dial) dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := d(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &patient{c}, nil
	}
}

// patient is such a connection. The time of a read begins when it is called: between reads it is the importing
// side that takes its time. http.Transport reads all along, so that what is sent moves on the time of that, too.
type patient struct{ net.Conn }

func (c *patient) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(b)
	return n, stalled(err)
}

func (c *patient) Write(b []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(b)
	if err == nil {
		err = c.SetReadDeadline(time.Now().Add(patience))
	}
	return n, stalled(err)
}

func stalled(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the store has neither taken nor sent anything for %v: %w", patience, err)
	}
	return err
}
