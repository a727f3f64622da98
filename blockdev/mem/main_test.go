package mem

import (
	"testing"

	"softiser/blockdev"
	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) {
	leaktest.Main(m, leaktest.Pool("bytes of staging memory", blockdev.DefaultPool().Out))
}
