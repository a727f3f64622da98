package attach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"softiser/internal/await"
)

// The flush by which the kernel gives a device back ends at once where the target is away and nothing was written since
// the last one; where something was, or before the device is taken back, it waits for the target.
func TestNeedlessFlushOfTheKernel(t *testing.T) {
	for _, c := range []struct {
		name   string
		state  string
		before func(*Attachment)
		want   string // of taking it back
		sent   string // the state when the target has the flush; "": there is none for it, or it changes nothing
	}{
		{"nothing written", stateReconnecting, func(*Attachment) {}, "", ""},
		{"not missed yet", "connected", func(*Attachment) {}, "", stateReconnecting},
		{"written", stateReconnecting, func(a *Attachment) { a.nexus.Cache.Enter([16]byte{1}).Wrote(nil) }, "did not finish writing back within 1s", ""},
		{"lost", stateReconnecting, func(a *Attachment) {
			e := a.nexus.Cache.Enter([16]byte{1})
			e.Wrote(nil)
			e.Lost()
		}, "did not finish writing back within 1s", ""},
		{"recovered", stateReconnecting, func(a *Attachment) { a.Record.Recovered = true }, "did not finish writing back within 1s", ""},
		{"connected", "connected", func(*Attachment) {}, "did not finish writing back within 1s", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := &fakeLUN{data: make([]byte, 1<<20), away: make(chan struct{})}
			opt := options(t, l)
			opt.FinishTimeout = time.Hour
			if c.want != "" {
				opt.FinishTimeout = time.Second
			}
			var state atomic.Value
			state.Store("connected")
			opt.State = func() (string, string) { return state.Load().(string), "" }
			a, _, err := Attach(t.Context(), opt)
			if err != nil {
				t.Fatal(err)
			}
			c.before(a)
			state.Store(c.state)
			ends := socketPair(t)
			kernel, done := ends[1], make(chan error, 1)
			go func() { done <- a.srv.ServeKernel(ends[0], a.export, nil) }()
			flush := func(string) error {
				if _, err := kernel.Write(requestHeader(3, 0, 0, 0)); err != nil { // NBD_CMD_FLUSH
					return err
				}
				var reply [16]byte
				_, err := io.ReadFull(kernel, reply[:])
				if e := binary.BigEndian.Uint32(reply[4:]); e != 0 {
					err = errors.Join(err, fmt.Errorf("error %d", e))
				}
				return err
			}
			taken := make(chan error, 1)
			go func() { taken <- a.writeBack("/dev/nbd77", flush) }()
			if c.sent != "" {
				await.True(t, "the target has the flush", func() bool { return l.begun.Load() == 1 })
				state.Store(c.sent)
			}
			err = <-taken
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if c.want != "" {
				await.True(t, "the target has the flush", func() bool { return l.begun.Load() == 1 })
			} else if n := l.begun.Load(); n != 0 && c.sent == "" {
				t.Errorf("%d requests for the target", n)
			}
			kernel.Close()
			if err := detached(t, a); c.want == "" && err != nil {
				t.Error(err)
			}
			<-done
		})
	}
}
