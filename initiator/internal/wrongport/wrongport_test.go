package wrongport

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"softiser/initiator/internal/pause"
	"softiser/rdma"
)

var errNotThis = errors.New("it speaks the other one")

// A port that has broken off, and says nothing to the question either, is not waited for.
func TestBrokenOffAndSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken off")
		d := Doubt{Speaks: func(ctx context.Context) bool { <-ctx.Done(); return false }}
		begin := time.Now()
		_, err := Connect(t.Context(), d, func(context.Context) (int, error) { return 0, broken })
		if !errors.Is(err, broken) || time.Since(begin) != Grace {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

// What a port that says nothing has cost is a deadline, and what to look at is in its text.
func TestSilent(t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 0, Silent("no login", 30*time.Second))
	defer cancel()
	err := context.Cause(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no login within 30s") || !strings.Contains(err.Error(), "port?") {
		t.Error(err)
	}
}

// So it is of a port that does not answer in RDMA, where the time-out is that of the start-up.
func TestSilentRDMA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := Doubt{Speaks: func(context.Context) bool { return false }}
		_, err := Connect(t.Context(), d, func(context.Context) (int, error) { return 0, rdma.ErrTimeout })
		if !errors.Is(err, rdma.ErrTimeout) || !strings.Contains(err.Error(), "port?") {
			t.Error(err)
		}
	})
}

// One that has shown by its refusal what it speaks is not asked.
func TestShown(t *testing.T) {
	refused := errors.New("refused")
	d := Doubt{
		Speaks: func(context.Context) bool { t.Error("it was asked"); return true },
		Wrong:  func(error) error { return errNotThis },
		Shows:  func(err error) bool { return errors.Is(err, refused) },
	}
	if _, err := Connect(t.Context(), d, func(context.Context) (int, error) { return 0, refused }); err != refused {
		t.Error(err)
	}
}

// A silent port is given up soon after it has answered in the other transport, and only
// then; one that breaks off is asked as well.
func TestConnect(t *testing.T) {
	broken := errors.New("broken off")
	for _, c := range []struct {
		name   string
		speaks bool
		answer time.Duration // when the connection is made, or fails
		err    error
		want   error
		took   time.Duration
	}{
		{"quick", true, 10 * time.Millisecond, nil, nil, 10 * time.Millisecond},
		{"slow, speaks both", true, Silence + Grace - time.Millisecond, nil, nil, Silence + Grace - time.Millisecond},
		{"silent, speaks the other", true, time.Minute, nil, errNotThis, Silence + Grace},
		{"silent, speaks nothing", false, time.Minute, nil, nil, time.Minute},
		{"breaks off, speaks the other", true, time.Millisecond, broken, errNotThis, time.Millisecond},
		{"breaks off, speaks nothing", false, time.Millisecond, broken, broken, time.Millisecond},
		{"our address is in use", true, time.Millisecond, syscall.EADDRINUSE, syscall.EADDRINUSE, time.Millisecond},
		{"nobody is there", true, time.Millisecond, &net.OpError{Op: "dial", Err: broken}, broken, time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var how error
				d := Doubt{
					Speaks: func(context.Context) bool { return c.speaks },
					Wrong:  func(err error) error { how = err; return errNotThis },
				}
				begin := time.Now()
				_, err := Connect(t.Context(), d, func(ctx context.Context) (int, error) {
					if !pause.For(ctx, c.answer) {
						return 0, ctx.Err()
					}
					return 1, c.err
				})
				if !errors.Is(err, c.want) || time.Since(begin) != c.took || err == errNotThis && how != c.err {
					t.Errorf("%v after %v, told %v", err, time.Since(begin), how)
				}
			})
		})
	}
}
