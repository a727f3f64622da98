package usage

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// What nobody reads holds a command up no longer when it has been interrupted; what somebody reads is written then, too.
func TestUnreadOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		defer r.Close()
		out := &Output{W: w, Ctx: ctx}
		written := make(chan error, 1)
		write := func(text string) {
			go func() {
				n, err := io.WriteString(out, text)
				if err == nil && n != len(text) {
					err = io.ErrShortWrite
				}
				written <- err
			}()
			synctest.Wait()
		}
		read := func(want string) {
			t.Helper()
			b := make([]byte, 9)
			if n, err := r.Read(b); string(b[:n]) != want || err != nil {
				t.Errorf("%q, %v", b[:n], err)
			}
			if err := <-written; err != nil {
				t.Error(err)
			}
		}
		write("before")
		time.Sleep(time.Hour)
		read("before")
		cancel()
		write("after")
		read("after")
		write("never")
		time.Sleep(twin - 1)
		if len(written) > 0 {
			t.Error("a reader has no time")
		}
		time.Sleep(1)
		if err := <-written; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if _, err := io.WriteString(out, "nor this"); !errors.Is(err, context.Canceled) || !errors.Is(out.Err(), context.Canceled) {
			t.Errorf("%v, %v", err, out.Err())
		}
	})
}
