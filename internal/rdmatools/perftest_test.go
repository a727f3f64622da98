package rdmatools

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"softiser/rdma"
)

// Each measurement over perftest's exchange, with this program at both ends; the
// originals are in interop.
func TestPerftest(t *testing.T) {
	for _, k := range perfKinds {
		t.Run(k.name, func(t *testing.T) {
			for _, opts := range [][]string{{"-n", "100", "-s", "64"}, {"-n", "1500", "-s", "5000"}, {"-n", "2", "-s", "1"}} {
				opts = without(k, opts, "-s")
				if k.latency && opts[1] == "1500" {
					opts = slices.Concat([]string{"-n", "300"}, opts[2:]) // each is two waits for a processor
				}
				port := freePort(t)
				s, c := both(t,
					append([]string{k.name, "-p", port, "--json"}, opts...),
					append([]string{k.name, "127.0.0.1", "-R", "-p", port, "--json"}, opts...))
				var d perfDoc
				if err := json.Unmarshal([]byte(c), &d); err != nil {
					t.Fatalf("%v: %s", err, c)
				}
				if d.Iterations < 1 || d.MsgRate <= 0 || !d.CRC || (d.Latency != nil) != k.latency {
					t.Errorf("%+v", d)
				}
				if k.name == "read-lat" || k.name == "atomic-lat" {
					continue // perftest's server has nothing to tell then
				}
				var sd perfDoc
				if err := json.Unmarshal([]byte(s), &sd); err != nil {
					t.Fatalf("%v: %s", err, s)
				}
				if sd.Iterations != d.Iterations || sd.MsgRate <= 0 {
					t.Errorf("the server has %+v, the client %+v", sd, d)
				}
			}
		})
	}
}

// What ib_read_bw 6.06 on siw has sent as its destination.
func TestPerftestDestination(t *testing.T) {
	raw, err := hex.DecodeString(ptDestSeen)
	if err != nil {
		t.Fatal(err)
	}
	var d ptDest
	if err := d.parse(raw); err != nil {
		t.Fatal(err)
	}
	if d != ptDestSeenAs {
		t.Errorf("%+v, want %+v", d, ptDestSeenAs)
	}
	// What is written is read, and what iWARP has no use for is zero.
	b := d.append(nil)
	var again ptDest
	if err := again.parse(b); err != nil || again != d {
		t.Errorf("%+v, %v", again, err)
	}
	if err := d.parse(b[:55]); err == nil {
		t.Error("55 bytes were taken")
	}
}

// controlOf opens the control connection of a client to the server that is about
// to listen on port.
func controlOf(ctx context.Context, t *testing.T, port string) (*rdma.Device, *ptControl) {
	t.Helper()
	dev, err := rdma.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	ctl, err := newPTControl(dev, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ctl.close)
	err = served(t, func() error {
		_, err := rdma.Dial(ctx, "tcp", "127.0.0.1:"+port, ctl.qp, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return dev, ctl
}

// A client that is not what it seems ends the server's attempt, not the server.
func TestPerftestHostileClient(t *testing.T) {
	for name, msgs := range map[string][]string{
		"old version":  {"5.60\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"},
		"no version":   {strings.Repeat("x", 16)},
		"empty":        {""},
		"huge cycle":   {"6.06" + strings.Repeat("\x00", 12), "\xff\xff\xff\xff"},
		"short cycle":  {"6.06" + strings.Repeat("\x00", 12), "\x00"},
		"short dest":   {"6.06" + strings.Repeat("\x00", 12), "\x00\x00\x10\x00", "\x00\x00\x00\x40", "3\x00", "dest"},
		"ends at once": {},
		"no data":      {"6.06" + strings.Repeat("\x00", 12), "\x00\x00\x10\x00", "\x00\x00\x00\x40", "3\x00", strings.Repeat("d", 56)},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			port := freePort(t)
			done := make(chan error, 1)
			go func() {
				_, err := tool(ctx, "write-bw", "-p", port)
				done <- err
			}()
			_, ctl := controlOf(ctx, t, port)
			for _, m := range msgs {
				if _, err := ctl.swap(ctx, []byte(m)); err != nil {
					break
				}
			}
			ctl.disconnect()
			if err := <-done; err == nil || ctx.Err() != nil {
				t.Errorf("the server: %v", err)
			}
		})
	}
}

const ptDestSeen = "00000000" + "00000080" + "00000002" + "00a830de" + "686c7300" + "00000000" + "00005590be7b2000" +
	"52540012345600000000000000000000" + "00000000" + "00000000"

var ptDestSeenAs = ptDest{Reads: 128, QPN: 2, RKey: 0x686c7300, VAddr: 0x5590be7b2000}

// ib_write_lat's client waits for the server's first Write before it sends
// anything on the data connection: found against the original, which hung.
func TestPerftestWriteLatServerBegins(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	port := freePort(t)
	done := make(chan error, 1)
	go func() {
		_, err := tool(ctx, "write-lat", "-p", port, "-n", "1", "-s", "8")
		done <- err
	}()
	dev, ctl := controlOf(ctx, t, port)
	cycle, err := ctl.greet(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ctl.dest(ctx, 1, &ptDest{}); err != nil {
		t.Fatal(err)
	}
	p := &perf{kind: perfKind{"write-lat", "", rdma.OpWriteImm, true}, size: 8, iters: 1, depth: 1, reads: 1}
	c, err := newPTTest(dev, p, cycle, true)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if _, err := rdma.Dial(ctx, "tcp", "127.0.0.1:"+port, c.qp, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.exchange(ctx, ctl); err != nil {
		t.Fatal(err)
	}
	if err := c.awaitWrite(ctx, 1); err != nil {
		t.Fatalf("the server does not begin: %v", err)
	}
	if err := c.sendWrite(ctx, 1); err != nil {
		t.Fatal(err)
	}
	c.disconnect()
	ctl.disconnect()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
