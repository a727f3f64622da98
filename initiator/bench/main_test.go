package bench

import (
	"testing"

	"softiser/initiator/internal/e2e"
	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m, e2e.Clean) }
