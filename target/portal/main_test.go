package portal

import (
	"testing"

	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func init() { badTransition = func(err error) { panic(err) } }
