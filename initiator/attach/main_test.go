package attach

import (
	"testing"

	"softiser/initiator/internal/e2e"
	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m, leaktest.Processes(), leaktest.After(e2e.Clean)) }
