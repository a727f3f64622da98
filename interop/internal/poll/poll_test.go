package poll

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestUntil(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name  string
		ended bool // the context
		ok    func(asked int) (bool, error)
		want  string // what the error says, "" if there is none
	}{
		{"at once", false, func(int) (bool, error) { return true, nil }, ""},
		{"later", false, func(n int) (bool, error) { return n == 5, nil }, ""},
		{"an error", false, func(n int) (bool, error) { return false, broken }, "broken"},
		{"ended", true, func(int) (bool, error) { return false, nil }, context.Canceled.Error()},
		{"never", false, func(int) (bool, error) { return false, nil }, "it never came about that the load writes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.ended {
					cancel()
				}
				asked := 0
				err := Until(ctx, time.Minute, "the load writes", func() (bool, error) { asked++; return c.ok(asked) })
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %q", err, c.want)
				}
			})
		})
	}
}
