package dhchap

import (
	"errors"
	"testing"

	"softiser/internal/fsm"
)

func init() { fsm.OnIllegal = func(err error) { panic(err) } }

// What the table does not have proves nothing.
func TestImpossibleTransition(t *testing.T) {
	told := fsm.OnIllegal
	defer func() { fsm.OnIllegal = told }()
	var got error
	fsm.OnIllegal = func(err error) { got = err }
	c := NewController(Config{})
	c.to(done)
	if got == nil || c.Done() || c.Failed() == nil || !errors.Is(c.Failed().Err, got) {
		t.Errorf("%v; done %v, failed %v", got, c.Done(), c.Failed())
	}
}
