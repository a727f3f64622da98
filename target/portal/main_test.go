package portal

import (
	"testing"

	"softiser/internal/fsm"
	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func init() { fsm.OnIllegal = func(err error) { panic(err) } }
