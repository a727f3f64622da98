package tcpref

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// maxDatagram is what UDP over IPv4 carries.
const maxDatagram = 65507

// ServeUDP sends every datagram back.
func ServeUDP(ctx context.Context, addr string) error {
	c, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	u, buf := c.(*net.UDPConn), make([]byte, maxDatagram)
	for {
		n, from, err := u.ReadFromUDPAddrPort(buf)
		if err == nil {
			_, err = u.WriteToUDPAddrPort(buf[:n], from)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// RunUDP is a ping-pong of datagrams with ServeUDP, for o.Time.
func RunUDP(ctx context.Context, addr string, o Options) (*Result, error) {
	if o.Size < 1 || o.Size > maxDatagram {
		return nil, fmt.Errorf("datagrams of %d bytes: want 1 to %d", o.Size, maxDatagram)
	}
	nc, err := (&net.Dialer{}).DialContext(ctx, "udp", addr)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	buf, trips := make([]byte, o.Size), make([]int64, 0, 4<<20)
	began := time.Now()
	for now := began; now.Sub(began) < o.Time; {
		if err := nc.SetReadDeadline(now.Add(time.Second)); err != nil {
			return nil, err
		}
		if _, err := nc.Write(buf); err != nil {
			return nil, err
		}
		if _, err := nc.Read(buf); err != nil {
			return nil, fmt.Errorf("ping-pong of datagrams: %w", err)
		}
		after := time.Now()
		if len(trips) < cap(trips) {
			trips = append(trips, int64(after.Sub(now)))
		}
		now = after
	}
	n := len(trips)
	if n == 0 {
		return nil, errors.New("no time for one datagram")
	}
	slices.Sort(trips)
	return &Result{Messages: int64(n), Bytes: int64(n) * int64(o.Size), Seconds: time.Since(began).Seconds(), P50: float64(trips[n/2]), P99: float64(trips[n*99/100])}, nil
}
