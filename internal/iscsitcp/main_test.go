package iscsitcp

import (
	"testing"

	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m, leaktest.Pool("receive buffers", BuffersOut)) }
