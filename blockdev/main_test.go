package blockdev

import (
	"testing"

	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) {
	leaktest.Main(m, leaktest.Pool("bytes of staging memory", DefaultPool().Out))
}
