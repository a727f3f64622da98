package iser

import (
	"context"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/internal/loopback"
	"softiser/rdma"
)

// device opens a device that must be empty at the end of the test.
func device(t testing.TB) *Device {
	t.Helper()
	d, err := Open(Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Connections that the test has ended may still be cleaning up.
		await.True(t, "the device is empty", func() bool { return d.Close() == nil })
		if n := d.ReceivesOut(); n != 0 {
			t.Errorf("%d receive buffers were not given back", n)
		}
	})
	return d
}

// connect makes a connected pair.
func connect(t testing.TB, di, dt *Device, ci, ct ConnConfig) (i, g *Conn) {
	t.Helper()
	a, b := loopback.Pair(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	type result struct {
		c   *Conn
		err error
	}
	ch := make(chan result, 1)
	go func() {
		c, err := dt.Serve(ctx, b, ct)
		ch <- result{c, err}
	}()
	i, err := di.Client(ctx, a, ci)
	if err != nil {
		t.Fatal(err)
	}
	r := <-ch
	if r.err != nil {
		t.Fatal(r.err)
	}
	return i, r.c
}

func pairWith(di, dt *Device, ci, ct ConnConfig) datamovertest.Pair {
	return func(t testing.TB) (iscsi.Datamover, iscsi.Datamover) {
		i, g := connect(t, di, dt, ci, ct)
		return i, g
	}
}

func TestConformance(t *testing.T) {
	off := rdma.ConnParams{CRC: rdma.CRCOff}
	for _, c := range []struct {
		name   string
		ci, ct ConnConfig
	}{
		{"CRC", ConnConfig{}, ConnConfig{}},
		{"NoCRC", ConnConfig{RDMA: off}, ConnConfig{RDMA: off}},
		{"NoInvalidate", ConnConfig{}, ConnConfig{NoRemoteInvalidate: true}},
		{"Hello", ConnConfig{RequireHello: true}, ConnConfig{}},
		{"OneRead", ConnConfig{RDMA: rdma.ConnParams{IRD: 1}}, ConnConfig{RDMA: rdma.ConnParams{ORD: 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			di, dt := device(t), device(t)
			datamovertest.Run(t, pairWith(di, dt, c.ci, c.ct))
		})
	}
}

func BenchmarkDatamover(b *testing.B) {
	datamovertest.Benchmark(b, pairWith(device(b), device(b), ConnConfig{}, ConnConfig{}))
}
