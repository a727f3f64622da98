package roce

import (
	"testing"

	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
